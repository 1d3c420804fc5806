"""What an export reads of the target, and what it writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from specresearch.models.loading import ModelNotLoadedError, resolve


@dataclass(frozen=True)
class TargetConfig:
    """The target's config; its weights are not read.

    Attributes:
        name: Folder or hub id, as other programs find it.
        max_len: Longest position, 0 if not stated.
    """

    name: str
    architectures: list[str]
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_len: int

    @staticmethod
    def read(model: str | None) -> "TargetConfig":
        """Read the config.json of a folder, hub id or zoo name."""
        if not model:
            raise ModelNotLoadedError(
                "the head names no target; set base_model= to its folder or hub id"
            )
        path = resolve(model)
        try:
            config = AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelNotLoadedError(
                f"the config.json of the target {model!r} cannot be read: {reason}; "
                "set base_model= to one that can"
            ) from error
        text = config.get_text_config()
        return TargetConfig(
            name=str(Path(path).resolve()) if Path(path).is_dir() else path,
            architectures=list(config.architectures or ()),
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            vocab_size=text.vocab_size,
            max_len=getattr(text, "max_position_embeddings", 0),
        )


@dataclass(frozen=True)
class Contents:
    """A head in the layout to write.

    Attributes:
        weights_name: Name of the tensor file.
        method: Proposer that drafts with the head.
        summary: One line for the user.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    weights_name: str
    method: str
    summary: str
