"""Whether a drafting head fits its target."""

import warnings
from typing import Any

from torch import nn

from specresearch.models.causal_lm import CausalLM


def lm_head_of(target: CausalLM) -> nn.Linear:
    """Return the target's LM head, whose input is what drafting heads read."""
    head: Any = target.model.get_output_embeddings()
    return head


def warn_of_other_base(name: str, base_model: str | None, target: str) -> None:
    """Warn if a head names other weights than the target's; only the models' base names count."""

    def base_name(model: str) -> str:
        return model.removeprefix("zoo:").rstrip("/").rpartition("/")[2].lower()

    if base_model and base_name(base_model) != base_name(target):
        warnings.warn(
            f"{name} was trained for {base_model} and the target is {target}; if these are not the "
            "same weights, hardly a draft will be accepted",
            stacklevel=3,
        )
