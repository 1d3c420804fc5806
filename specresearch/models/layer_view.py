"""A model that leaves out sublayers of another one and shares its weights.

An early exit leaves out whole layers at the end (LayerSkip, arXiv 2404.16710); attention and MLP of
any layer may be left out alone (Draft & Verify, arXiv 2309.08168). Norm and LM head are the
model's own.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from specresearch.models.causal_lm import CausalLM
from specresearch.models.hf_adapter import UnsupportedModelError
from specresearch.models.hf_model import HFModel

MLP_NAMES = ("mlp", "feed_forward")


@dataclass(frozen=True)
class Sublayers:
    """Sublayers of a model, by the numbers of their layers from 0."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @staticmethod
    def of(attention: Collection[int] = (), mlp: Collection[int] = ()) -> "Sublayers":
        return Sublayers(frozenset(attention), frozenset(mlp))

    @staticmethod
    def behind(exit_layer: int, num_layers: int) -> "Sublayers":
        """Return what an exit after the first `exit_layer` layers leaves out."""
        layers = range(exit_layer, num_layers)
        return Sublayers.of(layers, layers)

    @property
    def whole_layers(self) -> frozenset[int]:
        return self.attention & self.mlp

    def __or__(self, other: "Sublayers") -> "Sublayers":
        return Sublayers(self.attention | other.attention, self.mlp | other.mlp)

    def __sub__(self, other: "Sublayers") -> "Sublayers":
        return Sublayers(self.attention - other.attention, self.mlp - other.mlp)

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def __str__(self) -> str:
        parts = {
            "layers": self.whole_layers,
            "attention of": self.attention - self.whole_layers,
            "MLP of": self.mlp - self.whole_layers,
        }
        listed = [f"{name} {', '.join(map(str, sorted(of)))}" for name, of in parts.items() if of]
        return "; ".join(listed) or "nothing"

    def check(self, num_layers: int, name: str) -> None:
        """Raise ValueError unless a model of so many layers can do without these."""
        beyond = sorted(i for i in self.attention | self.mlp if not 0 <= i < num_layers)
        if beyond:
            raise ValueError(
                f"layer {beyond[0]} cannot be skipped: the layers of {name} are 0 to "
                f"{num_layers - 1}"
            )
        if len(self.attention) == num_layers:
            raise ValueError(
                f"the attention of all {num_layers} layers of {name} would be skipped, and the "
                "draft would see no token but the last; keep at least one"
            )


def lists_of(skipped: Sublayers) -> dict[str, list[int]]:
    """Return sublayers as settings and files name them."""
    return {"skip_attention": sorted(skipped.attention), "skip_mlp": sorted(skipped.mlp)}


def from_lists(content: Any) -> Sublayers:
    """Return what `lists_of` wrote; raises KeyError, TypeError or ValueError for anything else."""
    return Sublayers.of(*(list(map(int, content[name])) for name in ("skip_attention", "skip_mlp")))


def skip_sublayers(target: CausalLM, skipped: Sublayers) -> CausalLM:
    """Return a model without some sublayers: the same weights, and a cache of its own.

    Raises:
        ValueError: If there is no such layer, or none is left.
        UnsupportedModelError: If a sublayer of this architecture cannot be left out alone.
    """
    return CausalLM(
        layer_view(target, skipped),
        target.tokenizer,
        max_len=target.max_len,
        attention=target.adapter.attention,
        prefill_chunk=target.prefill_chunk,
        compile=target.compile,
        pack_weights=False,  # it shares the target's packed layers
        graphs=target.passes is not None,
        name=f"{target.name} without {skipped}",
    )


def layer_view(target: HFModel, skipped: Sublayers) -> PreTrainedModel:
    """Return the bare model of `skip_sublayers`."""
    originals = target.adapter.layers
    skipped.check(len(originals), target.name)
    model = _with_shared_weights(target.model)
    name = _name_of_stack(target.model, originals)
    layers = list(model.get_submodule(name).children())
    kept = [i for i in range(len(layers)) if i not in skipped.whole_layers]
    returns_tuple = _mlps_return_tuples(target) if skipped.mlp - skipped.whole_layers else False
    num_attentions = 0
    for i in kept:
        if i in skipped.attention:
            setattr(layers[i], _attention_name(layers[i]), _Nothing(returns_tuple=True))
            continue
        if i in skipped.mlp:
            setattr(layers[i], _mlp_name(layers[i]), _Nothing(returns_tuple))
        for part in layers[i].modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                vars(part)["layer_idx"] = num_attentions  # its place in the cache
        num_attentions += 1
    model.set_submodule(name, nn.ModuleList(layers[i] for i in kept))
    config = model.config.get_text_config(decoder=True)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    return model


class _Nothing(nn.Module):
    """Takes the place of a skipped sublayer and adds nothing to the residual stream."""

    def __init__(self, returns_tuple: bool) -> None:
        super().__init__()
        self.returns_tuple = returns_tuple

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, None]:
        nothing = torch.zeros_like(args[0] if args else kwargs["hidden_states"])
        return (nothing, None) if self.returns_tuple else nothing


class _SharedHead(nn.Module):
    """An LM head of another model, without that model's hooks."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Any:
        return self.head.weight

    def forward(self, states: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows V"]:
        return self.head.forward(states)


def _with_shared_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the containers of a model, but no parameter, buffer or module without children."""
    shared: dict[int, Any] = {}
    for module in model.modules():
        if any(True for _ in module.children()):
            tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            shared.update({id(tensor): tensor for tensor in tensors})
        else:
            shared[id(module)] = module
    copied = copy.deepcopy(model, shared)
    copied.set_output_embeddings(_SharedHead(model.get_output_embeddings()))
    return copied


def _name_of_stack(model: nn.Module, layers: Sequence[nn.Module]) -> str:
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and list(module) == list(layers):
            return name
    raise UnsupportedModelError(
        f"the layers of {type(model).__name__} are not in one list, so none can be skipped; "
        "use another proposer"
    )


def _attention_name(layer: nn.Module) -> str:
    """Return the name of the one child that knows its place in the cache."""
    names = [name for name, child in layer.named_children() if hasattr(child, "layer_idx")]
    if len(names) == 1:
        return names[0]
    raise _not_apart(layer, "attention")


def _mlp_name(layer: nn.Module) -> str:
    names = [name for name, _ in layer.named_children() if name in MLP_NAMES]
    if len(names) == 1:
        return names[0]
    raise _not_apart(layer, "MLP")


def _not_apart(layer: nn.Module, sublayer: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the {sublayer} of a {type(layer).__name__} is no module of its own and cannot be skipped "
        "alone; skip whole layers, the same numbers in skip_attention and skip_mlp"
    )


@torch.no_grad()
def _mlps_return_tuples(target: HFModel) -> bool:
    """Run one token to see whether MLPs return a tuple, as those that route to experts may do."""
    layer = target.adapter.layers[0]
    returned: list[Any] = []
    mlp = layer.get_submodule(_mlp_name(layer))
    hook = mlp.register_forward_hook(lambda _module, _args, output: returned.append(output))
    try:
        target.forward_whole(torch.zeros((1, 1), dtype=torch.long, device=target.device))
    finally:
        hook.remove()
    return isinstance(returned[0], tuple)
