"""The target as its own draft model: the same weights, quantised, with a cache of its own.

ML-SpecQD (arXiv 2503.13565) drafts with a copy of fewer bits, which needs no training.
"""

from collections.abc import Mapping
from typing import Any

from specresearch.models.causal_lm import CausalLM
from specresearch.models.loading import Weights
from specresearch.models.quantization import Quantization, choose_quantizer
from specresearch.models.quantizer import quantized_copy
from specresearch.settings.drafting import SELF

OF_THE_CHECKPOINT = (
    "device",
    "dtype",
    "revision",
    "trust_remote_code",
    "allow_pickle",
    "gguf_file",
)


class TargetCopy:
    """Makes a draft model of a target once there is one; nothing is read from the disk again.

    The copy shares what is not quantised, such as embeddings and norms, and takes device and
    precision from the target.

    Args:
        quantization: As of `CausalLM.from_pretrained`; None shares all weights.
        settings: Other arguments of `CausalLM`.
    """

    def __init__(self, quantization: Quantization | None, **settings: Any) -> None:
        self.quantization = quantization
        self.settings = settings
        self._made: tuple[CausalLM, CausalLM] | None = None

    def of(self, target: CausalLM) -> CausalLM:
        """Return the copy of a target, the same one whenever it is asked for.

        Raises:
            ValueError: If the target is quantised itself, or cannot be here.
        """
        if self._made is None or self._made[0] is not target:
            self._made = (target, self._make(target))
        return self._made[1]

    def _make(self, target: CausalLM) -> CausalLM:
        if target.weights != target.dtype_name:
            raise ValueError(
                f"proposer.draft=self quantises the target's weights, and those of {target.name} "
                f"are quantised already ({target.weights}); name the unquantised checkpoint by "
                "proposer.draft.model="
            )
        quantizer = None
        if self.quantization:
            quantizer = choose_quantizer(self.quantization, target.device, target.dtype)
        model = quantized_copy(target.model, quantizer, target.dtype, target.device)
        return CausalLM(
            model,
            target.tokenizer,
            max_len=target.max_len,
            name=f"{target.name} ({SELF})",
            **self.settings,
        )


def load_draft(
    model: str,
    *,
    weights: Weights = "trained",
    quantization: Quantization | None = None,
    **settings: Any,
) -> CausalLM | TargetCopy:
    """Load a draft model, or prepare to copy the target for `model="self"`.

    Args:
        settings: Other arguments of `CausalLM.from_pretrained`.
    """
    if model != SELF:
        return CausalLM.from_pretrained(
            model, weights=weights, quantization=quantization, **settings
        )
    return TargetCopy(quantization, **_without_checkpoint(settings))


def _without_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in OF_THE_CHECKPOINT}
