"""Do not wait for a hub that does not answer.

Without a network, the hub's library would retry every file of a model for half a minute.
"""

from collections.abc import Collection
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

# settings that hold a folder, a hub id or a zoo: name
MODELS = (
    "target.model",
    "draft",
    "proposer.head",
    "proposer.drafter.head",
    "head",
    "base_model",
    "client.tokenizer",
)


def stay_offline_without_hub(cfg: DictConfig, known: Collection[str] = ()) -> None:
    """Use the local cache alone if a model may have to come from a hub that does not answer.

    Args:
        known: Hub ids that this command does not need the hub for.
    """
    names = {OmegaConf.select(cfg, key) for key in MODELS} - set(known)
    if not any(map(_may_lie_on_hub, names)):
        return
    from huggingface_hub import constants

    from specresearch.data.hub import probe

    if not constants.HF_HUB_OFFLINE and probe(constants.ENDPOINT) is not None:
        constants.HF_HUB_OFFLINE = True


def _may_lie_on_hub(name: str | None) -> bool:
    if not name or name.startswith(("zoo:", "/", ".", "~")):
        return False
    return not Path(name).exists()
