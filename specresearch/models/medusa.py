"""Medusa's heads (arXiv 2401.10774): each predicts one of the tokens after the next."""

import re

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models.causal_lm import CausalLM
from specresearch.models.head_files import WHOLE_MODEL, HeadFiles, load_tensors, read_head
from specresearch.models.head_fit import lm_head_of, warn_of_other_base
from specresearch.models.loading import ModelNotLoadedError
from specresearch.models.random_weights import Weights

SAVED_NAME = "medusa_lm_head.safetensors"
WEIGHTS = (SAVED_NAME, "medusa_lm_head.pt", *WHOLE_MODEL)
PREFIX = "medusa_head."


class MedusaBlock(nn.Module):
    """Computes x + SiLU(W x + b); the identity when it is new."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """Head i, counted from 0, reads what the LM head reads at token t and predicts token t + 2 + i.

    Args:
        vocab_size: None lets all heads end in the target's LM head (version 2 of the format).
        base_model: The target whose weights they were trained on.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int | None,
        num_heads: int = 5,
        num_layers: int = 1,
        *,
        base_model: str | None = None,
    ) -> None:
        super().__init__()
        for _ in range(num_heads):
            head = nn.Sequential(*[MedusaBlock(hidden_size) for _ in range(num_layers)])
            if vocab_size is not None:
                head.append(nn.Linear(hidden_size, vocab_size, bias=False))
            self.append(head)
        self.hidden_size, self.vocab_size, self.num_layers = hidden_size, vocab_size, num_layers
        self.base_model = base_model

    def forward(
        self, hidden: Float[Tensor, "*rows H"], lm_head: nn.Module
    ) -> Float[Tensor, "*rows K V"]:
        """Return the logits of all K heads.

        Args:
            lm_head: The target's, for heads without one of their own.
        """
        outputs = torch.stack([head(hidden) for head in self], dim=-2)
        return lm_head(outputs) if self.vocab_size is None else outputs

    def check_fit(self, target: CausalLM) -> None:
        """Warn if the heads name another target; raise ValueError if they cannot read this one."""
        width = lm_head_of(target).in_features
        if self.hidden_size != width or self.vocab_size not in (None, target.vocab_size):
            raise ValueError(
                f"the Medusa heads are for hidden states of {self.hidden_size} and "
                f"{self.vocab_size or 'any number of'} tokens, and the target has {width} and "
                f"{target.vocab_size}; use heads of this target"
            )
        warn_of_other_base("the Medusa heads", self.base_model, target.name)

    @classmethod
    def from_pretrained(
        cls, checkpoint: str, *, revision: str | None = None, weights: Weights = "trained"
    ) -> "MedusaHeads":
        """Load Medusa-1, version 2 or our own files, or the heads inside a Medusa-2 model.

        Heads and layers are counted by their tensors, because published configs are wrong about
        them. The heads of a Medusa-2 model have that model's fine-tuned weights as their base.

        Args:
            checkpoint: A folder, hub id or zoo name.
            weights: `random` is explained at `read_head`.
        """
        files = read_head(checkpoint, WEIGHTS, revision=revision, prefix=PREFIX, values=weights)
        is_whole = any(key.startswith(PREFIX) for key in files.tensors)
        tensors = {key.removeprefix(PREFIX): value for key, value in files.tensors.items()}
        with torch.device("meta"):
            heads = _empty_like(files, tensors)
        heads.base_model = checkpoint if is_whole else files.config.get("base_model_name_or_path")
        load_tensors(heads, checkpoint, tensors)
        return heads


def _empty_like(files: HeadFiles, tensors: dict[str, Tensor]) -> MedusaHeads:
    """Make as many heads and layers as the tensors name."""
    blocks = [re.fullmatch(r"(\d+)\.(\d+)\.linear\.weight", key) for key in tensors]
    indices = [(int(match[1]), int(match[2])) for match in blocks if match]
    if not indices:
        raise ModelNotLoadedError(
            f"{files.name!r} holds no Medusa heads: none of its tensors is called "
            f"0.0.linear.weight or {PREFIX}0.0.linear.weight"
        )
    num_heads = max(head for head, _ in indices) + 1
    num_layers = max(layer for _, layer in indices) + 1
    lm_head = tensors.get(f"0.{num_layers}.weight")
    if str(files.config.get("version")) == "2" and lm_head is not None:
        raise ModelNotLoadedError(
            f"{files.name!r}: version=2 has no LM heads, and there is 0.{num_layers}.weight"
        )
    head, layer = indices[0]
    hidden_size = tensors[f"{head}.{layer}.linear.weight"].shape[1]
    vocab_size = None if lm_head is None else lm_head.shape[0]
    return MedusaHeads(hidden_size, vocab_size, num_heads, num_layers)
