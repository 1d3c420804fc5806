"""A drafting head beside its target: what it reads, and whether it was trained on these very weights."""

import warnings
from typing import Any

from torch import nn

from specresearch.models.causal_lm import CausalLM


def lm_head_of(target: CausalLM) -> nn.Linear:
    """The target's LM head, whose input is what every head here reads."""
    head: Any = target.model.get_output_embeddings()
    return head


def warn_of_other_base(name: str, base_model: str | None, target: str) -> None:
    """A head works with the very weights it was trained on; names are compared by their last part."""

    def last(model: str) -> str:
        return model.removeprefix("zoo:").rstrip("/").rpartition("/")[2].lower()

    if base_model and last(base_model) != last(target):
        warnings.warn(
            f"{name} was trained for {base_model} and the target is {target}; if these are not the same weights, hardly a draft "
            "will be accepted",
            stacklevel=3,
        )
