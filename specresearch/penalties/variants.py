"""The precisions of a table: names such as bf16 and int4, and models in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.models import CausalLM, TargetCopy
from specresearch.models.memory import stored_bytes
from specresearch.models.quantization import Quantization, choose_quantizer, label_of
from specresearch.settings.drafting import PRECISIONS


@dataclass(frozen=True)
class WeightVariant:
    """Weights in one precision.

    Attributes:
        name: What tables call it.
        quantization: None for full precision.
    """

    name: str
    quantization: Quantization | None

    def check(self, target: CausalLM) -> None:
        """Raise ValueError if weights cannot be quantised so on the target's device."""
        if self.quantization is not None:
            choose_quantizer(self.quantization, target.device, target.dtype)

    def of(self, model: CausalLM, **settings: Any) -> CausalLM:
        """Return a copy of a model, which shares the weights that stay as they are.

        Args:
            settings: Further arguments of `CausalLM`.
        """
        return TargetCopy(self.quantization, **settings).of(model)


def variants_of(precisions: Sequence[Quantization]) -> list[WeightVariant]:
    """Return the variants that a list of settings names."""
    variants = []
    for precision in precisions:
        if isinstance(precision, str) and precision in PRECISIONS:
            variants.append(WeightVariant(precision, None))
        else:
            variants.append(WeightVariant(label_of(precision, "full"), precision))
    return variants


def full_precision(precisions: Sequence[Quantization]) -> str:
    """Return the dtype that the first of the targets stands for."""
    return PRECISIONS[str(precisions[0])]


def read_bytes(model: CausalLM) -> int:
    """Return the bytes of weights that decoding a token reads: all but a table of embeddings."""
    module: Any = model.model
    embeddings, head = module.get_input_embeddings(), module.get_output_embeddings()
    total = stored_bytes([module])
    return total if embeddings.weight is head.weight else total - stored_bytes([embeddings])
