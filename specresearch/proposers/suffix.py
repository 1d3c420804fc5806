"""Suffix decoding: what followed the end of the context before, weighed by how often (Oliaro et al., arXiv 2411.04975)."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from specresearch.batch import Batch, RequestState
from specresearch.proposal import DraftKind, Proposal
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.proposers.host_tree import HostTree, stack_trees
from specresearch.proposers.suffix_trie import Follower, SuffixTrie


class Suffix(Proposer):
    """Drafts grow from the longest suffix that occurred before, the likeliest run first; needs no model and no training.

    A run is as likely as the counts of its tokens say, multiplied. It grows while that is above `min_probability`, to at
    most max_factor x (length of the match) + offset nodes. The drafts are point masses, and their scores the counts'.

    branch: drafts may be trees; False follows the likeliest token only. max_depth: longest run that is counted; a match is
    at most half as long.
    use_global: look into the outputs of earlier requests too, and take the draft whose nodes are more probable in sum. Then
    steps depend on what was decoded before. max_global_nodes: how much of it is remembered, the older half leaving first.
    """

    def __init__(
        self,
        num_draft_tokens: int = 32,
        max_factor: float = 1.0,
        offset: float = 0.0,
        min_probability: float = 0.1,
        branch: bool = True,
        max_depth: int = 64,
        use_global: bool = False,
        max_global_nodes: int = 500_000,
    ) -> None:
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        checks = (
            (max_factor > 0, "max_factor", max_factor, "must be above 0"),
            (offset >= 0, "offset", offset, "must be 0 or above"),
            (0 <= min_probability < 1, "min_probability", min_probability, "must lie in [0, 1)"),
            (max_depth >= 2, "max_depth", max_depth, "must be at least 2"),
            (max_global_nodes >= 2, "max_global_nodes", max_global_nodes, "must be at least 2"),
        )
        for passed, name, value, rule in checks:
            if not passed:
                raise ValueError(f"proposer.{name}={value} {rule}")
        self.max_factor, self.offset, self.min_probability = max_factor, offset, min_probability
        self.branch, self.max_depth = branch, max_depth
        self.use_global, self.max_global_nodes = use_global, max_global_nodes
        self.kind = DraftKind(trees=branch, scored=True)
        self._rows: dict[int, RequestState] = {}
        self._own: dict[int, SuffixTrie] = {}
        self.reset()

    @property
    def memory(self) -> Literal["cold", "warm"]:
        return "warm" if self.use_global else "cold"

    def reset(self) -> None:
        """Forget the outputs of earlier requests."""
        self._past = deque([SuffixTrie(self.max_depth)], maxlen=2)

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        for row in rows:
            self._rows[row.slot] = row
            self._own[row.slot] = SuffixTrie(self.max_depth)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        pairs = zip(batch.rows, budget, strict=True)
        trees = [
            self._draft(row, allowed) if allowed else HostTree(row.tokens[-1])
            for row, allowed in pairs
        ]
        return stack_trees(trees, batch.device, scored=True)

    def _draft(self, row: RequestState, allowed: int) -> HostTree:
        own = self._own[row.slot]
        own.extend(row.tokens[own.num_tokens :])
        drafts = [
            self._grow(trie, row.tokens, allowed)
            for trie in (own, *(self._past if self.use_global else ()))
        ]
        return max(drafts, key=lambda draft: draft[1])[0]

    def _grow(
        self, trie: SuffixTrie, tokens: Sequence[int], allowed: int
    ) -> tuple[HostTree, float]:
        """A draft, and the sum of its nodes' probabilities."""
        tree, total, order = HostTree(tokens[-1]), 0.0, count()
        place, length = trie.longest_match(tokens[-(self.max_depth // 2) :])
        limit = min(allowed, int(self.max_factor * length + self.offset)) if length else 0
        waiting: list[
            tuple[float, int, int, Follower]
        ] = []  # a heap: -probability, order of arrival, parent
        node, above = 0, 1.0
        while len(tree) <= limit:
            for follower in self._candidates(trie.followers(place)):
                probability = above * follower.probability
                if probability > self.min_probability:
                    heapq.heappush(waiting, (-probability, next(order), node, follower))
            if not waiting:
                break
            negative, _, parent, chosen = heapq.heappop(waiting)
            above, place = -negative, chosen.place
            node = tree.add(parent, chosen.token, chosen.probability)
            total += above
        return tree, total

    def _candidates(self, followers: Iterable[Follower]) -> Iterable[Follower]:
        if self.branch:
            return followers
        likeliest = max(followers, key=lambda follower: follower.probability, default=None)
        return [] if likeliest is None else [likeliest]

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._own.pop(slot, None)
            row = self._rows.pop(slot, None)
            if row is not None and row.finish_reason and self.use_global:
                self._remember(row.output_ids)

    def _remember(self, output: Sequence[int]) -> None:
        if self._past[-1].num_nodes >= self.max_global_nodes // 2:
            self._past.append(SuffixTrie(self.max_depth))
        self._past[-1].extend(output)
        self._past[-1].end()
