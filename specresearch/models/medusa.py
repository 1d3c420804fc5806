"""Medusa's heads (arXiv 2401.10774): each predicts one of the tokens after the next."""

import re

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from specresearch.models.causal_lm import CausalLM
from specresearch.models.head_files import WHOLE_MODEL, HeadFiles, load_tensors, read_head
from specresearch.models.head_fit import lm_head_of, warn_of_other_base
from specresearch.models.loading import ModelNotLoadedError, saved_as
from specresearch.models.random_weights import Weights

SAVED_NAME = "medusa_lm_head.safetensors"
WEIGHTS = (SAVED_NAME, "medusa_lm_head.pt", *WHOLE_MODEL)
PREFIX = "medusa_head."
TOKEN_MAP = "token_map"  # as vLLM calls it


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
        vocab_size: Tokens of the heads' own LM heads. None lets all heads end in the target's LM
            head (version 2 of the format).
        base_model: The target whose weights they were trained on.
        target_ids: The target's tokens that LM heads of a reduced vocabulary draft, `vocab_size`
            of them.
    """

    token_map: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int | None,
        num_heads: int = 5,
        num_layers: int = 1,
        *,
        base_model: str | None = None,
        target_ids: Int[Tensor, " D"] | None = None,
    ) -> None:
        super().__init__()
        assert target_ids is None or len(target_ids) == vocab_size
        for _ in range(num_heads):
            head = nn.Sequential(*[MedusaBlock(hidden_size) for _ in range(num_layers)])
            if vocab_size is not None:
                head.append(nn.Linear(hidden_size, vocab_size, bias=False))
            self.append(head)
        self.hidden_size, self.vocab_size, self.num_layers = hidden_size, vocab_size, num_layers
        self.base_model = base_model
        self.register_buffer(TOKEN_MAP, target_ids)

    @property
    def target_ids(self) -> Int[Tensor, " D"] | None:
        """The target's tokens that a reduced vocabulary consists of; None if it is the target's."""
        return self.token_map

    def forward(
        self, hidden: Float[Tensor, "*rows H"], lm_head: nn.Module
    ) -> Float[Tensor, "*rows K D"]:
        """Return the logits of all K heads, over their own vocabulary.

        Args:
            lm_head: The target's, for heads without one of their own.
        """
        outputs = torch.stack([head(hidden) for head in self], dim=-2)
        return lm_head(outputs) if self.vocab_size is None else outputs

    def check_fit(self, target: CausalLM) -> None:
        """Warn if the heads name another target; raise ValueError if they cannot read this one."""
        width = lm_head_of(target).in_features
        if not self.fits(width, target.vocab_size):
            raise ValueError(
                f"the Medusa heads are for hidden states of {self.hidden_size} and "
                f"{self.vocab_size or 'any number of'} tokens, and the target has {width} and "
                f"{target.vocab_size}; use heads of this target"
            )
        warn_of_other_base("the Medusa heads", self.base_model, target.name)

    def fits(self, hidden_size: int, vocab_size: int) -> bool:
        """Return whether a target of this width and vocabulary can be drafted for."""
        if self.target_ids is not None:
            known = int(self.target_ids.max()) < vocab_size
        else:
            known = self.vocab_size in (None, vocab_size)
        return known and self.hidden_size == hidden_size

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
            f"0.0.linear.weight or {PREFIX}0.0.linear.weight{saved_as(files.config)}"
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
    target_ids = tensors.get(TOKEN_MAP)
    if target_ids is not None:
        _check_token_map(files.name, target_ids, vocab_size)
    return MedusaHeads(hidden_size, vocab_size, num_heads, num_layers, target_ids=target_ids)


def _check_token_map(name: str, target_ids: Tensor, vocab_size: int | None) -> None:
    """Raise ModelNotLoadedError unless it names a different token for every row of an LM head."""
    is_list_of_ids = target_ids.dim() == 1 and target_ids.dtype == torch.long
    if not is_list_of_ids or len(target_ids) != vocab_size:
        raise ModelNotLoadedError(
            f"{name!r}: {TOKEN_MAP} is {target_ids.dtype} of shape {list(target_ids.shape)}, and "
            f"the LM heads have {vocab_size or 'no'} rows; it must name one token for each"
        )
    if len(target_ids.unique()) < len(target_ids) or target_ids.min() < 0:
        raise ModelNotLoadedError(f"{name!r}: {TOKEN_MAP} names a token twice, or one below 0")
