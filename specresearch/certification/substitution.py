"""Methods of the command line on the toy target: what they name is built, and the models they need are toys."""

from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from specresearch.certification.enumeration import Toy
from specresearch.models import CausalLM


def build_on_toy(node: Any, toy: Toy, target: CausalLM) -> Any:
    """What a config node's `_target_` names, with its settings.

    A `CausalLM.from_pretrained` in it becomes a toy draft LM. A class with a classmethod `toy(target, seed, **settings)` builds
    itself: it gets the plain settings that are written out, not those that refer to a real target or to checkpoints.
    """
    if isinstance(node, ListConfig):
        return [build_on_toy(child, toy, target) for child in node]
    if not (isinstance(node, DictConfig) and "_target_" in node):
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    made = get_object(node["_target_"])
    if made == CausalLM.from_pretrained:
        return toy.draft()
    try:
        if hasattr(made, "toy"):
            return made.toy(target, toy.seed, **_plain_settings(node))
        nested = [
            str(key)
            for key in node
            if not OmegaConf.is_interpolation(node, str(key)) and _builds(node[key])
        ]
        plain = {str(key): OmegaConf.select(node, str(key)) for key in node if key not in nested}
        built = {key: build_on_toy(node[key], toy, target) for key in nested}
        make = instantiate(OmegaConf.create(plain), _convert_="all", _partial_=True)
        return make(**built)
    except TypeError as error:
        raise ValueError(f"{node['_target_']}: {error}") from error


def _builds(value: Any) -> bool:
    """Whether something is built anywhere below."""
    if isinstance(value, DictConfig):
        return "_target_" in value
    return isinstance(value, ListConfig) and any(_builds(child) for child in value)


def _plain_settings(node: DictConfig) -> dict[str, Any]:
    told = OmegaConf.to_container(node, resolve=False)
    assert isinstance(told, dict)
    return {
        str(key): value for key, value in told.items() if key != "_target_" and not _refers(value)
    }


def _refers(value: Any) -> bool:
    """Whether it is, or holds, an interpolation or something to be built."""
    if isinstance(value, dict):
        return "_target_" in value or any(_refers(child) for child in value.values())
    if isinstance(value, list):
        return any(_refers(child) for child in value)
    return isinstance(value, str) and "${" in value
