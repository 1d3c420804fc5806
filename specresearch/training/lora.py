"""Low-rank adapters (LoRA, arXiv 2106.09685) through peft, merged for decoding and saving."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

ADAPTER_NAME = "default"
WEIGHTS = "adapter_model.safetensors"
HARMLESS_WARNINGS = (
    "fan_in_fan_out is set to False",
    "The following .*_pattern keys did not match",
)


@dataclass(frozen=True)
class Lora:
    """Settings of adapters.

    Attributes:
        rank: Inner width of the two factors.
        alpha: The product is scaled by alpha / rank.
        dropout: Dropout of the adapters' inputs in training.
        targets: Names of linear layers, or suffixes such as q_proj; None: all but the LM head.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} must be at least 1")
        if not self.alpha > 0:
            raise ValueError(f"lora.alpha={self.alpha} must be above 0")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout={self.dropout} must lie in [0, 1)")
        if self.targets is not None and (isinstance(self.targets, str) or not self.targets):
            raise ValueError(
                f"lora.targets={self.targets!r} must be a list such as [q_proj, v_proj]; "
                "null adapts all"
            )


class Adapter:
    """Adapters in a model, initialised so that they change nothing yet."""

    def __init__(self, model: PreTrainedModel, lora: Lora, seed: int = 0) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            raise ValueError(
                "adapters need peft: pip install 'specresearch[lora]', or set lora to null"
            ) from error
        self.model = model
        self.config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets or _linear_layers(model)),
        )
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            torch.manual_seed(seed)
            for message in HARMLESS_WARNINGS:
                warnings.filterwarnings("ignore", message)
            try:
                inject_adapter_in_model(self.config, model)
            except ValueError as error:
                suffixes = sorted({name.rpartition(".")[2] for name in _linear_layers(model)})
                raise ValueError(
                    f"lora.targets={lora.targets} do not fit {type(model).__name__}; "
                    f"choose from {', '.join(suffixes)}"
                ) from error
        self.layers: dict[str, Any] = {
            name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
        }
        if isinstance(model.get_output_embeddings(), LoraLayer):
            raise ValueError(
                f"lora.targets={lora.targets} include the LM head, from which decoding selects "
                "rows; leave it out"
            )
        for name, layer in self.layers.items():
            _check_mergeable(name, getattr(layer.get_base_layer(), "weight", None))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self._factors().values())

    def _factors(self) -> dict[str, nn.Parameter]:
        factors: dict[str, nn.Parameter] = {}
        for name, layer in self.layers.items():
            factors[f"{name}.lora_A.weight"] = layer.lora_A[ADAPTER_NAME].weight
            factors[f"{name}.lora_B.weight"] = layer.lora_B[ADAPTER_NAME].weight
        return factors

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Swap in plain layers with the adapters merged; the model's own weights stay untouched."""
        for name, layer in self.layers.items():
            self.model.set_submodule(name, _merge(layer))
        try:
            yield
        finally:
            for name, layer in self.layers.items():
                self.model.set_submodule(name, layer)

    def save(self, folder: str | Path) -> None:
        """Write an adapter for `peft.PeftModel.from_pretrained` on the original model."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        tensors = {
            f"base_model.model.{name}": weight.detach().cpu().contiguous()
            for name, weight in self._factors().items()
        }
        save_file(tensors, Path(folder) / WEIGHTS, metadata={"format": "pt"})
        self.config.save_pretrained(str(folder))


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of all linear layers but the LM head."""
    lm_head = model.get_output_embeddings()
    names: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | Conv1D) and layer is not lm_head:
            names.append(name)
    return names


def _check_mergeable(name: str, weight: Tensor | None) -> None:
    if weight is None or not weight.is_floating_point():
        reason = "no linear layer" if weight is None else "quantized"
        raise ValueError(
            f"an adapter cannot be merged into {name}, which is {reason}; choose other "
            "lora.targets, or load the model in 16 bits"
        )


@torch.no_grad()
def _merge(layer: Any) -> nn.Module:
    base = layer.get_base_layer()
    weight = (base.weight + layer.get_delta_weight(ADAPTER_NAME)).to(base.weight.dtype)
    return copy.deepcopy(base, {id(base.weight): nn.Parameter(weight, requires_grad=False)})
