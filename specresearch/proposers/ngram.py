"""Prompt lookup: drafts what followed the last few tokens earlier in the same request.

Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding) and Yang et al. (arXiv 2304.04487).
"""

from collections.abc import Sequence

from specresearch.batch import Batch
from specresearch.proposal import Proposal, upload
from specresearch.proposers.base import Proposer, number_or
from specresearch.proposers.draft_shape import AUTO, LONGEST_CHAIN, DraftShape, NumDrafts
from specresearch.request import RequestState


class NGram(Proposer):
    """Matches the longest suffix from n_max down to n_min tokens; the latest occurrence wins.

    Needs no model and no training. The drafts are point masses, so they are lossless at every
    temperature.
    """

    def __init__(self, num_draft_tokens: NumDrafts = 10, n_max: int = 4, n_min: int = 2) -> None:
        self.num_draft_tokens = number_or(num_draft_tokens, LONGEST_CHAIN)
        if num_draft_tokens == AUTO:
            self.shapes = (DraftShape(self.num_draft_tokens),)
        if not 1 <= n_min <= n_max:
            raise ValueError(f"proposer.n_min={n_min}, n_max={n_max}: need 1 <= n_min <= n_max")
        self.n_max, self.n_min = n_max, n_min
        self._indexes: dict[int, NGramIndex] = {}

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        for row in rows:
            self._indexes[row.slot] = NGramIndex(self.n_min, self.n_max)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        drafts = []
        for row, allowed in zip(batch.rows, budget, strict=True):
            continuation: Sequence[int] = ()
            if allowed:
                continuation = self._indexes[row.slot].continuation(row.tokens, allowed)
            drafts.append([row.tokens[-1], *continuation])
        lengths = [len(draft) for draft in drafts]
        padded = [draft + [0] * (max(lengths) - len(draft)) for draft in drafts]
        return Proposal.chain(
            upload(padded, batch.device), upload(lengths, batch.device), host_lengths=lengths
        )

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._indexes.pop(slot, None)


class NGramIndex:
    """Finds where each n-gram of a growing context was last followed by a token.

    Once queried, it costs n_max - n_min + 1 updates for every new token.
    """

    def __init__(self, n_min: int, n_max: int) -> None:
        self.sizes = range(n_max, n_min - 1, -1)
        self._next: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def continuation(self, tokens: Sequence[int], num: int) -> list[int]:
        """Return up to `num` tokens that followed the longest known suffix.

        An overlapping match repeats its period.
        """
        self._update(tokens)
        for size in self.sizes:
            begin = self._next.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if begin is not None:
                period = len(tokens) - begin
                if period >= num:
                    return list(tokens[begin : begin + num])
                return [tokens[begin + i % period] for i in range(num)]
        return []

    def _update(self, tokens: Sequence[int]) -> None:
        """Index the tokens that are new since the last call."""
        for position in range(max(self._num_seen, 1), len(tokens)):
            for size in self.sizes:
                if size <= position:
                    self._next[tuple(tokens[position - size : position])] = position
        self._num_seen = len(tokens)
