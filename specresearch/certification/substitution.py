"""Build configured methods on a toy target, with toy models in place of the real ones."""

from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from specresearch.certification.targets import Toy
from specresearch.models import CausalLM, load_draft
from specresearch.settings.drafting import SELF

TOY_BITS = {"int8": 8, "float8": 8}
FEWEST_BITS = 4  # int4, and settings of libraries


def build_on_toy(node: Any, toy: Toy, target: CausalLM) -> Any:
    """Build what a config node's `_target_` names.

    A draft model becomes a toy one, and the target's quantised copy a copy of the toy target; both
    have their weights rounded to as many bits as `quantization` names. A class with a classmethod
    `toy(target, seed, **settings)` builds itself; it gets the settings that are written out, not
    those that refer to a real target or to checkpoints.
    """
    if isinstance(node, ListConfig):
        return [build_on_toy(child, toy, target) for child in node]
    if not (isinstance(node, DictConfig) and "_target_" in node):
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    factory = get_object(node["_target_"])
    if factory in (CausalLM.from_pretrained, load_draft):
        return _toy_draft(node, toy)
    try:
        if hasattr(factory, "toy"):
            return factory.toy(target, toy.seed, **_literal_settings(node))
        built, plain = {}, {}
        for name in map(str, node):
            if not OmegaConf.is_interpolation(node, name) and _has_target(node[name]):
                built[name] = build_on_toy(node[name], toy, target)
            else:
                plain[name] = OmegaConf.select(node, name)
        make = instantiate(OmegaConf.create(plain), _convert_="all", _partial_=True)
        return make(**built)
    except TypeError as error:
        raise ValueError(f"{node['_target_']}: {error}") from error


def _toy_draft(node: DictConfig, toy: Toy) -> CausalLM:
    settings: Any = OmegaConf.to_container(node, resolve=False)
    quantization = settings.get("quantization")
    bits = TOY_BITS.get(str(quantization), FEWEST_BITS) if quantization else None
    if settings.get("model") == SELF:
        return toy.copy(bits)
    return toy.draft(bits=bits)


def _has_target(value: Any) -> bool:
    """Return True if the value, or an item of the list, is to be built."""
    if isinstance(value, DictConfig):
        return "_target_" in value
    return isinstance(value, ListConfig) and any(_has_target(child) for child in value)


def _literal_settings(node: DictConfig) -> dict[str, Any]:
    """Return the settings that contain no interpolation and nothing to be built."""
    settings: Any = OmegaConf.to_container(node, resolve=False)
    names = [name for name in settings if name != "_target_" and not _refers(settings[name])]
    return {str(name): settings[name] for name in names}


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "_target_" in value or any(_refers(child) for child in value.values())
    if isinstance(value, list):
        return any(_refers(child) for child in value)
    return isinstance(value, str) and "${" in value
