"""The shapes of draft trees as settings, and Sequoia's choice of the best static one (arXiv 2402.12374)."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specresearch.proposers.base import check_num_draft_tokens
from specresearch.proposers.static_tree import RankPath, StaticTree

USUAL_SIZES = {"chain": 5, "static": 24, "dynamic": 60}
TYPICAL_RANK_ACCEPTANCE = (0.6, 0.15, 0.07, 0.04, 0.025, 0.015, 0.01, 0.008)


class TreeShape:
    """What shape a proposer's drafts take.

    name: chain, static (fixed paths of child ranks) or dynamic (the most confident nodes of every level).
    num_draft_tokens: length of the chain, or nodes of the tree; None: `USUAL_SIZES`, or all nodes of a smaller dynamic tree.
    paths: of a static tree, as a list or as a JSON file with a list under "paths"; None: the best tree of `num_draft_tokens`
    nodes at most `depth` deep for a typical acceptance by rank. depth, top_k: levels of a dynamic tree, and nodes expanded in
    each. static: the tree, unless it is dynamic. A static tree without branches is a chain.
    Raises ValueError for a tree that is none.
    """

    def __init__(
        self,
        name: str,
        num_draft_tokens: int | None = None,
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
    ) -> None:
        if name not in USUAL_SIZES:
            raise ValueError(
                f"proposer.tree={name!r} is unknown; choose one of {', '.join(USUAL_SIZES)}"
            )
        if depth < 1 or top_k < 1:
            raise ValueError(
                f"proposer.depth={depth}, proposer.top_k={top_k}: both must be at least 1"
            )
        if paths is not None and name != "static":
            raise ValueError(f"proposer.paths is for proposer.tree=static, not {name}")
        self.name, self.depth, self.top_k = name, depth, top_k
        size = (
            USUAL_SIZES[name]
            if num_draft_tokens is None
            else check_num_draft_tokens(num_draft_tokens)
        )
        self.static: StaticTree | None = None
        if name == "chain":
            self.static = StaticTree.from_paths([(0,) * length for length in range(1, size + 1)])
        elif name == "static":
            read = read_paths(paths) if isinstance(paths, str) else paths
            self.static = StaticTree.from_paths(
                best_tree(TYPICAL_RANK_ACCEPTANCE, size, depth).paths if read is None else read
            )
            size = self.static.num_drafts
            if max(self.static.widths) == 1:  # a tree without branches drafts faster as what it is
                self.name = "chain"
        elif name == "dynamic":
            reachable = top_k + (depth - 1) * top_k**2
            if num_draft_tokens is not None and size > reachable:
                raise ValueError(
                    f"proposer.num_draft_tokens={size}: a dynamic tree with depth={depth} and top_k={top_k} "
                    f"has {reachable} nodes to choose from; raise depth or top_k"
                )
            size = min(size, reachable)
        self.num_draft_tokens = size

    @property
    def max_fed(self) -> int:
        """The most nodes a drafter has in its cache while it grows, the root included."""
        return (
            1 + self.top_k * (self.depth - 1) if self.name == "dynamic" else self.num_draft_tokens
        )

    def bind(self, vocab_size: int, device: torch.device) -> None:
        """Raises ValueError when a rank is beyond the vocabulary."""
        if self.static is not None:
            if max(self.static.widths) > vocab_size:
                raise ValueError(
                    f"a path has rank {max(self.static.widths) - 1} and the vocabulary {vocab_size} tokens; lower proposer.paths"
                )
            self.static = self.static.to(device)


def read_paths(file: str) -> list[list[int]]:
    """The paths in a JSON file as `python -m specresearch.tree` writes it. Raises ValueError when there are none."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        return [
            [int(rank) for rank in path]
            for path in (found["paths"] if isinstance(found, dict) else found)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"proposer.paths={file}: no list of paths under 'paths' ({type(error).__name__}: {error}); "
            "write one with python -m specresearch.tree"
        ) from error


@dataclass(frozen=True)
class BestTree:
    """paths: of child ranks, the likeliest to be accepted first. depth: of the deepest. expected: tokens a step is expected to
    give, the target's own included."""

    paths: tuple[RankPath, ...]
    depth: int
    expected: float


def small_paths(vocab_size: int) -> list[RankPath]:
    """Return a static tree of three levels for a target of a few tokens, past 16 nodes where there are three or more."""
    ranks = range(min(3, vocab_size))
    return [path for depth in (1, 2, 3) for path in product(ranks, repeat=depth) if sum(path) <= 3]


def path_acceptance(path: Sequence[int], rank_acceptance: Sequence[float]) -> float:
    """That everything on the path is accepted; the same, to the last bit, for every order of the same ranks."""
    return math.prod(rank_acceptance[rank] for rank in sorted(path))


def likeliest_first(
    paths: Iterable[RankPath], rank_acceptance: Sequence[float]
) -> tuple[RankPath, ...]:
    """The order in which a small budget should keep them; of equally likely paths the shorter first, then the lower ranks."""
    return tuple(
        sorted(paths, key=lambda path: (-path_acceptance(path, rank_acceptance), len(path), path))
    )


def best_tree(rank_acceptance: Sequence[float], num_draft_tokens: int, max_depth: int) -> BestTree:
    """The tree of at most so many nodes, at most so deep, that is expected to give the most tokens a step.

    rank_acceptance[r]: how often the child of rank r is the one accepted, where a node has that many children.
    """
    tables = _tables(np.asarray(rank_acceptance, dtype=float), num_draft_tokens + 1, max_depth)
    return _tree(tables, rank_acceptance, num_draft_tokens + 1, max_depth)


def best_trees(
    rank_acceptance: Sequence[float], num_draft_tokens: int, max_depth: int
) -> list[BestTree]:
    """The best tree of every size up to `num_draft_tokens` and every depth up to `max_depth`."""
    tables = _tables(np.asarray(rank_acceptance, dtype=float), num_draft_tokens + 1, max_depth)
    return [
        _tree(tables, rank_acceptance, size, depth)
        for depth in range(1, max_depth + 1)
        for size in range(2, num_draft_tokens + 2)
    ]


@dataclass(frozen=True)
class _Tables:
    """value[l, b, m]: expected tokens of the best tree of m nodes, l levels and at most b children of the root. split[l, b, m]:
    nodes of the subtree below child b - 1, 0 where it is better to go without."""

    value: NDArray[np.float64]
    split: NDArray[np.int64]


def _tables(acceptance: NDArray[np.float64], num_nodes: int, max_depth: int) -> _Tables:
    """Sequoia's recurrence: the last child takes y nodes, the others share what is left."""
    if num_nodes < 2 or max_depth < 1 or not len(acceptance):
        raise ValueError(
            f"a tree needs at least one draft, one level and one rank; got {num_nodes - 1}, {max_depth}, {acceptance}"
        )
    if (acceptance < 0).any() or (acceptance > 1).any():
        raise ValueError(f"acceptance by rank must lie in [0, 1]; got {acceptance.tolist()}")
    num_ranks = len(acceptance)
    value = np.ones((max_depth + 1, num_ranks + 1, num_nodes + 1))
    value[:, :, 0] = -np.inf
    split = np.zeros(value.shape, dtype=np.int64)
    for level in range(1, max_depth + 1):
        below = value[level - 1, num_ranks]  # [m]: the best subtree of m nodes
        for rank in range(1, num_ranks + 1):
            fewer = value[level, rank - 1]
            value[level, rank] = fewer
            for size in range(2, num_nodes + 1):
                own = np.arange(1, size)  # nodes of the last child's subtree
                gain = fewer[size - own] + acceptance[rank - 1] * below[own]
                best = int(gain.argmax())
                if gain[best] > value[level, rank, size] + 1e-12:
                    value[level, rank, size], split[level, rank, size] = gain[best], own[best]
    return _Tables(value, split)


def _tree(
    tables: _Tables, rank_acceptance: Sequence[float], num_nodes: int, depth: int
) -> BestTree:
    paths: list[RankPath] = []
    num_ranks = tables.value.shape[1] - 1
    stack: list[tuple[RankPath, int, int, int]] = [((), depth, num_ranks, num_nodes)]
    while stack:
        prefix, level, rank, size = stack.pop()
        if level == 0 or rank == 0 or size < 2:
            continue
        own = int(tables.split[level, rank, size])
        if own:
            child = (*prefix, rank - 1)
            paths.append(child)
            stack.append((child, level - 1, num_ranks, own))
        stack.append((prefix, level, rank - 1, size - own))
    expected = float(tables.value[depth, num_ranks, num_nodes])
    return BestTree(
        likeliest_first(paths, rank_acceptance), max(map(len, paths), default=0), expected
    )
