"""Low-rank adapters (LoRA, arXiv 2106.09685) through peft: few weights learn, and a saved model holds plain weights alone."""

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

NAME = "default"
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """A product of two matrices beside each weight. rank: their inner width. alpha: the product is scaled by alpha / rank.

    dropout: of what the product reads, in training. targets: names of linear layers, or ends of their names such as q_proj;
    None: all but the LM head. Raises ValueError for settings that cannot be.
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
                f"lora.targets={self.targets!r} must be a list such as [q_proj, v_proj]; null takes all"
            )


class Adapter:
    """Adapters put into a model, whose own weights no longer learn. seed: of their random weights; they change nothing yet.

    Raises ValueError where peft is missing, no layer has such a name, the LM head has one, or weights are quantised.
    """

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
            for harmless in (
                "fan_in_fan_out is set to False",
                "The following .*_pattern keys did not match",
            ):
                warnings.filterwarnings("ignore", harmless)
            try:
                inject_adapter_in_model(self.config, model)
            except ValueError as error:
                there = sorted({name.rpartition(".")[2] for name in _linear_layers(model)})
                raise ValueError(
                    f"lora.targets={lora.targets} do not fit {type(model).__name__}; choose of {', '.join(there)}"
                ) from error
        self.layers: dict[str, Any] = {
            name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
        }
        if isinstance(model.get_output_embeddings(), LoraLayer):
            raise ValueError(
                f"lora.targets={lora.targets} take in the LM head, of whose rows decoding chooses some; leave it out"
            )
        for name, layer in self.layers.items():
            _check(name, getattr(layer.get_base_layer(), "weight", None))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [weight for layer in self.layers.values() for _, weight in self._matrices(layer)]

    @staticmethod
    def _matrices(layer: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield "lora_A.weight", layer.lora_A[NAME].weight
        yield "lora_B.weight", layer.lora_B[NAME].weight

    @contextmanager
    def merged(self) -> Iterator[None]:
        """The model with plain layers that have taken up the adapters as they are now. Its own weights are not touched."""
        for name, layer in self.layers.items():
            self.model.set_submodule(name, _merge(layer))
        try:
            yield
        finally:
            for name, layer in self.layers.items():
                self.model.set_submodule(name, layer)

    def save(self, folder: str | Path) -> None:
        """Write what `peft.PeftModel.from_pretrained` puts on the model that was adapted."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        tensors = {
            f"base_model.model.{name}.{part}": weight.detach().cpu().contiguous()
            for name, layer in self.layers.items()
            for part, weight in self._matrices(layer)
        }
        save_file(tensors, Path(folder) / WEIGHTS, metadata={"format": "pt"})
        self.config.save_pretrained(str(folder))


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """All but the LM head."""
    head = model.get_output_embeddings()
    kinds = (nn.Linear, Conv1D)
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) and layer is not head
    ]


def _check(name: str, weight: Tensor | None) -> None:
    if weight is None or not weight.is_floating_point():
        raise ValueError(
            f"an adapter cannot be merged into {name}, which is {'no linear layer' if weight is None else 'quantised'}; choose "
            "other lora.targets, or load the model in 16 bits"
        )


@torch.no_grad()
def _merge(layer: Any) -> nn.Module:
    base = layer.get_base_layer()
    weight = (base.weight + layer.get_delta_weight(NAME)).to(base.weight.dtype)
    return copy.deepcopy(base, {id(base.weight): nn.Parameter(weight, requires_grad=False)})
