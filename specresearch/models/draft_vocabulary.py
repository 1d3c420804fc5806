"""Heads that can draft only some of the target's tokens."""

from dataclasses import dataclass

from jaxtyping import Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens of a drafter: the target's, or some of them under numbers of their own.

    Searching a few thousand of these costs less than searching all tokens of the target.

    Attributes:
        target_size: Tokens of the target.
        target_ids: The target's id of every token of the drafter; None if they are the same.
    """

    target_size: int
    target_ids: Int[Tensor, " D"] | None = None

    @property
    def size(self) -> int:
        """The number of tokens that can be drafted."""
        return self.target_size if self.target_ids is None else len(self.target_ids)

    def named(self, tokens: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the target's ids of tokens."""
        return tokens if self.target_ids is None else self.target_ids[tokens]

    def whole(self, logits: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Return logits in the target's vocabulary, -inf for tokens that cannot be drafted."""
        if self.target_ids is None:
            return logits
        padded = logits.new_full((*logits.shape[:-1], self.target_size), float("-inf"))
        return padded.index_copy_(-1, self.target_ids, logits)
