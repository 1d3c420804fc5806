"""Suffix decoding: drafts what followed the end of the context before, weighted by its frequency.

Oliaro et al. (arXiv 2411.04975).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from specresearch.batch import Batch
from specresearch.proposal import DraftKind, Proposal
from specresearch.proposers.base import Proposer, number_or
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.host_tree import HostTree, stack_trees
from specresearch.proposers.suffix_trie import Follower, SuffixTrie
from specresearch.request import RequestState

LARGEST = 32  # nodes of a draft


class Suffix(Proposer):
    """Drafts grow from the longest suffix that occurred before, the likeliest run first.

    Needs no model and no training. The probability of a run is the product of the relative
    frequencies of its tokens. A draft grows while this is above `min_probability`, to at most
    max_factor x (length of the match) + offset nodes. Drafts are point masses; their scores are
    the frequencies.

    Args:
        branch: Drafts may be trees. False follows the likeliest token only.
        max_depth: Longest run that is counted; a match is at most half as long.
        use_global: Look into the outputs of earlier requests too, and take the draft with the
            larger sum of probabilities. Steps then depend on what was decoded before.
        max_global_nodes: The size of that memory, in nodes and in tokens; the older half leaves
            first.
    """

    def __init__(
        self,
        num_draft_tokens: NumDrafts = LARGEST,
        max_factor: float = 1.0,
        offset: float = 0.0,
        min_probability: float = 0.1,
        branch: bool = True,
        max_depth: int = 64,
        use_global: bool = False,
        max_global_nodes: int = 500_000,
    ) -> None:
        self.num_draft_tokens = number_or(num_draft_tokens, LARGEST)
        if num_draft_tokens == AUTO:
            self.shapes = (DraftShape(self.num_draft_tokens),)
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
        self.kind = DraftKind(
            branch, scored=True, chain_setting="proposer.branch=false", finds_depth=branch
        )
        self._rows: dict[int, RequestState] = {}
        self._tries: dict[int, SuffixTrie] = {}
        self.reset()

    @property
    def memory(self) -> Literal["cold", "warm"]:
        return "warm" if self.use_global else "cold"

    def reset(self) -> None:
        """Drop the outputs of earlier requests."""
        self._global_tries = deque([SuffixTrie(self.max_depth)], maxlen=2)

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        for row in rows:
            self._rows[row.slot] = row
            self._tries[row.slot] = SuffixTrie(self.max_depth)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        trees = []
        for row, allowed, room in zip(batch.rows, budget, batch.room, strict=True):
            none = HostTree(row.tokens[-1])
            trees.append(self._draft(row, allowed, room) if allowed else none)
        return stack_trees(trees, batch.device, scored=True)

    def _draft(self, row: RequestState, allowed: int, room: int) -> HostTree:
        trie = self._tries[row.slot]
        trie.extend(row.tokens[trie.num_tokens :])
        best, best_total = self._grow(trie, row.tokens, allowed, room)
        if self.use_global:
            for global_trie in self._global_tries:
                draft, total = self._grow(global_trie, row.tokens, allowed, room)
                if total > best_total:
                    best, best_total = draft, total
        return best

    def _grow(
        self, trie: SuffixTrie, tokens: Sequence[int], allowed: int, room: int
    ) -> tuple[HostTree, float]:
        """Return a draft and the sum of its nodes' probabilities.

        Args:
            allowed: The most nodes.
            room: The longest path.
        """
        tree, total = HostTree(tokens[-1]), 0.0
        cursor, length = trie.longest_match(tokens[-(self.max_depth // 2) :])
        limit = 0
        if length:
            limit = min(allowed, int(self.max_factor * length + self.offset))
        arrival = count()
        # a heap of -probability, order of arrival, parent and follower
        waiting: list[tuple[float, int, int, Follower]] = []
        node, node_probability = 0, 1.0
        while len(tree) <= limit:
            followers = trie.followers(cursor) if tree.depths[node] < room else ()
            for follower in self._candidates(followers):
                probability = node_probability * follower.probability
                if probability > self.min_probability:
                    heapq.heappush(waiting, (-probability, next(arrival), node, follower))
            if not waiting:
                break
            negative, _, parent, chosen = heapq.heappop(waiting)
            node_probability = -negative
            cursor = chosen.cursor
            node = tree.add(parent, chosen.token, chosen.probability)
            total += node_probability
        return tree, total

    def _candidates(self, followers: Iterable[Follower]) -> Iterable[Follower]:
        if self.branch:
            return followers
        likeliest = max(followers, key=lambda follower: follower.probability, default=None)
        return [] if likeliest is None else [likeliest]

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._tries.pop(slot, None)
            row = self._rows.pop(slot, None)
            if row is not None and row.finish_reason and self.use_global:
                self._remember(row.output_ids)

    def _remember(self, output: Sequence[int]) -> None:
        newest = self._global_tries[-1]
        # a text that repeats itself grows without new nodes
        if max(newest.num_nodes, newest.num_tokens) >= self.max_global_nodes // 2:
            self._global_tries.append(SuffixTrie(self.max_depth))
        self._global_tries[-1].extend(output)
        self._global_tries[-1].end()
