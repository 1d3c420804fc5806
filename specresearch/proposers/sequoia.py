"""Sequoia's search for the best static draft tree (arXiv 2402.12374)."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from specresearch.proposers.static_tree import RankPath

TYPICAL_RANK_ACCEPTANCE = (0.6, 0.15, 0.07, 0.04, 0.025, 0.015, 0.01, 0.008)


PRIOR_VISITS = 4  # that a rank's acceptance at one depth is shrunk to that of all depths with


@dataclass
class RankTable:
    """Counts how often the child of each rank was the accepted one, by depth of the parent.

    Attributes:
        visits: Nodes on accepted paths that had such a child.
        accepted: Those whose child of this rank was accepted.
    """

    visits: list[list[int]] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)

    def add(self, ranks: Sequence[int], num_children: Sequence[int]) -> None:
        """Count an accepted path: the ranks of its drafts, and the children of root and drafts."""
        for depth, num in enumerate(num_children):
            for table in (self.visits, self.accepted):
                table.extend([] for _ in range(depth + 1 - len(table)))
                table[depth].extend([0] * (num - len(table[depth])))
            for rank in range(num):
                self.visits[depth][rank] += 1
        for depth, rank in enumerate(ranks):
            self.accepted[depth][rank] += 1

    def acceptance(self) -> list[list[float]]:
        """Return the acceptance by depth and rank, in which no rank exceeds the one before it.

        That of few visits is shrunk to the acceptance of the rank at all depths.
        """
        by_depth = []
        for visits, accepted in zip(self.visits, self.accepted, strict=True):
            rates: list[float] = []
            for rank, (num, hits) in enumerate(zip(visits, accepted, strict=True)):
                rate = (hits + PRIOR_VISITS * self._overall(rank)) / (num + PRIOR_VISITS)
                rates.append(min([rate, *rates[-1:]]))
            by_depth.append(rates)
        return by_depth

    def _overall(self, rank: int) -> float:
        num = sum(visits[rank] for visits in self.visits if rank < len(visits))
        hits = sum(accepted[rank] for accepted in self.accepted if rank < len(accepted))
        return hits / num if num else 0.0


def likeliest_paths(
    acceptance: Sequence[Sequence[float]], num_nodes: int
) -> list[tuple[RankPath, float]]:
    """Return the paths most likely to be accepted with their probabilities, the likeliest first.

    They are the best tree of their number: each node adds its own probability to the expected
    tokens of a step. There are fewer than `num_nodes` if the table has no more.

    Args:
        acceptance: By depth, then rank, given that the parent was accepted; falls with the rank.
    """
    paths: list[tuple[RankPath, float]] = []
    frontier: list[tuple[float, RankPath]] = []  # a heap

    def push(path: RankPath, above: float) -> None:
        depth, rank = len(path) - 1, path[-1]
        if depth < len(acceptance) and rank < len(acceptance[depth]):
            heapq.heappush(frontier, (-above * acceptance[depth][rank], path))

    above: dict[RankPath, float] = {(): 1.0}
    push((0,), 1.0)
    while frontier and len(paths) < num_nodes:
        negative, path = heapq.heappop(frontier)
        above[path] = -negative
        paths.append((path, -negative))
        push((*path[:-1], path[-1] + 1), above[path[:-1]])
        push((*path, 0), -negative)
    return paths


@dataclass(frozen=True)
class BestTree:
    """The tree with the most expected tokens per step.

    Attributes:
        paths: The path of child ranks of every draft, the likeliest to be accepted first.
        depth: Depth of the deepest path.
        expected: Expected tokens per step, the target's own included.
    """

    paths: tuple[RankPath, ...]
    depth: int
    expected: float


def path_acceptance(path: Sequence[int], rank_acceptance: Sequence[float]) -> float:
    """Return the probability that the whole path is accepted.

    It is the same, to the last bit, for every order of the same ranks.
    """
    return math.prod(rank_acceptance[rank] for rank in sorted(path))


def likeliest_first(
    paths: Iterable[RankPath], rank_acceptance: Sequence[float]
) -> tuple[RankPath, ...]:
    """Sort paths in the order in which a small budget should keep them.

    Of equally likely paths, the shorter come first, then those of lower ranks.
    """

    def key(path: RankPath) -> tuple[float, int, RankPath]:
        return -path_acceptance(path, rank_acceptance), len(path), path

    return tuple(sorted(paths, key=key))


def best_tree(rank_acceptance: Sequence[float], num_draft_tokens: int, max_depth: int) -> BestTree:
    """Return the best tree of at most `num_draft_tokens` drafts and `max_depth` levels.

    Args:
        rank_acceptance: How often the child of each rank is the accepted one, where a node has
            that many children.
    """
    search = _Search(rank_acceptance, num_draft_tokens + 1, max_depth)
    return search.tree(num_draft_tokens + 1, max_depth)


def best_trees(
    rank_acceptance: Sequence[float], num_draft_tokens: int, max_depth: int
) -> list[BestTree]:
    """Return the best tree of every size and depth up to the given ones, by depth, then size."""
    search = _Search(rank_acceptance, num_draft_tokens + 1, max_depth)
    trees = []
    for depth in range(1, max_depth + 1):
        trees += [search.tree(size, depth) for size in range(2, num_draft_tokens + 2)]
    return trees


class _Search:
    """Solves Sequoia's recurrence: the last child takes y nodes, the others share the rest.

    Attributes:
        value: `value[l, b, m]` is the expected number of tokens of the best tree of m nodes, l
            levels and at most b children of the root.
        split: `split[l, b, m]` counts the nodes of its subtree below child b - 1; 0 if it is
            better without this child.
    """

    value: Float[np.ndarray, "_ _ _"]
    split: Int[np.ndarray, "_ _ _"]

    def __init__(self, rank_acceptance: Sequence[float], num_nodes: int, max_depth: int) -> None:
        acceptance = np.asarray(rank_acceptance, dtype=float)
        self.rank_acceptance = rank_acceptance
        self.num_ranks = len(acceptance)
        if num_nodes < 2 or max_depth < 1 or not self.num_ranks:
            raise ValueError(
                "a tree needs at least one draft, one level and one rank; "
                f"got {num_nodes - 1}, {max_depth}, {acceptance}"
            )
        if (acceptance < 0).any() or (acceptance > 1).any():
            raise ValueError(f"acceptance by rank must lie in [0, 1]; got {acceptance.tolist()}")
        self.value = np.ones((max_depth + 1, self.num_ranks + 1, num_nodes + 1))
        self.value[:, :, 0] = -np.inf
        self.split = np.zeros(self.value.shape, dtype=np.int64)
        for level in range(1, max_depth + 1):
            for rank in range(1, self.num_ranks + 1):
                self._add_child(level, rank, acceptance[rank - 1])

    def _add_child(self, level: int, rank: int, acceptance: float) -> None:
        """Fill the entries of trees of `level` levels whose root has up to `rank` children."""
        without = self.value[level, rank - 1]  # [m]: the best tree of m nodes without this child
        subtree = self.value[level - 1, self.num_ranks]  # [m]: the best subtree of m nodes
        self.value[level, rank] = without
        for size in range(2, len(without)):
            sizes = np.arange(1, size)  # of the child's subtree
            gain = without[size - sizes] + acceptance * subtree[sizes]
            best = int(gain.argmax())
            if gain[best] > self.value[level, rank, size] + 1e-12:
                self.value[level, rank, size] = gain[best]
                self.split[level, rank, size] = sizes[best]

    def tree(self, num_nodes: int, depth: int) -> BestTree:
        """Read the best tree of this size and depth from the tables."""
        paths: list[RankPath] = []
        stack: list[tuple[RankPath, int, int, int]] = [((), depth, self.num_ranks, num_nodes)]
        while stack:
            path, level, rank, size = stack.pop()
            if level == 0 or rank == 0 or size < 2:
                continue
            child_size = int(self.split[level, rank, size])
            if child_size:
                child = (*path, rank - 1)
                paths.append(child)
                stack.append((child, level - 1, self.num_ranks, child_size))
            stack.append((path, level, rank - 1, size - child_size))
        return BestTree(
            paths=likeliest_first(paths, self.rank_acceptance),
            depth=max(map(len, paths), default=0),
            expected=float(self.value[depth, self.num_ranks, num_nodes]),
        )
