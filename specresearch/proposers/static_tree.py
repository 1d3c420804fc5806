"""Draft trees of fixed shape, and what a row with a small budget or little room keeps of one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TypeAlias

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from specresearch.proposal import Topology, upload

RankPath: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StaticTree:
    """A tree of fixed shape, in which every node is the child of a given rank of its parent.

    topology: [1, N], nodes sorted by depth. ranks: each node's place among the likeliest tokens after its parent. levels:
    the first node of every depth, and N. num_fed: how many nodes of every depth have to be fed for the sake of children.
    paths: of ranks, one for every draft, in the order in which a smaller budget keeps them. places: each node's number in
    the tree that this one was cut from.
    """

    topology: Topology
    ranks: Int[Tensor, " N"]
    levels: tuple[int, ...]
    num_fed: tuple[int, ...]
    paths: tuple[RankPath, ...]
    places: Int[Tensor, " N"]

    @staticmethod
    def from_paths(
        paths: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> "StaticTree":
        """From every node's path of ranks, the most useful first, e.g. [(0,), (0, 0), (1,)]: a row with a budget of k keeps
        the first k. Parents and earlier siblings are put before a path that was given before them.

        Raises ValueError for a path with a hole.
        """
        if not paths or not all(len(path) and min(path) >= 0 for path in paths):
            raise ValueError(
                f"a static tree is a list of paths of ranks from 0 on, such as [[0], [1], [0, 0]]; got {paths}"
            )
        ordered = _by_depth(paths)
        topology = Topology.from_paths(ordered, device)
        depths = [0, *map(len, ordered)]
        levels = tuple(depths.index(depth) for depth in range(depths[-1] + 1))
        parents = {path[:-1] for path in ordered}
        last = [
            max(
                (i for i, path in enumerate(ordered, 1) if path in parents and len(path) == d),
                default=0,
            )
            for d in range(len(levels))
        ]
        num_fed = tuple(max(end - begin + 1, 0) for end, begin in zip(last, levels, strict=True))
        ranks = torch.tensor([0, *(path[-1] for path in ordered)], device=device)
        places = torch.arange(len(depths), device=device)
        return StaticTree(
            topology, ranks, (*levels, len(depths)), num_fed, _elders_first(paths), places
        )

    @property
    def depth(self) -> int:
        return len(self.levels) - 2

    @property
    def num_drafts(self) -> int:
        return self.topology.num_nodes - 1

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """For every depth, the number of likeliest tokens that its nodes are picked from."""
        bounds = zip(self.levels, self.levels[1:], strict=False)
        return tuple(int(self.ranks[begin:end].max()) + 1 for begin, end in bounds)

    @cached_property
    def tops(self) -> tuple[Topology, ...]:
        """For every depth, the tree of the nodes fed by then, which end with the fed ones of that depth."""
        tops = []
        for begin, fed in zip(self.levels, self.num_fed, strict=False):
            end, whole = begin + fed, self.topology
            top = Topology(
                whole.parents[:, :end], whole.is_chain, whole.max_depth, whole.max_children
            )
            top.__dict__["ancestors"] = whole.ancestors[:, :end, :end]
            tops.append(top)
        return tuple(tops)

    def to(self, device: torch.device) -> "StaticTree":
        whole = self.topology
        moved = Topology(
            whole.parents.to(device), whole.is_chain, whole.max_depth, whole.max_children
        )
        return replace(
            self, topology=moved, ranks=self.ranks.to(device), places=self.places.to(device)
        )

    @cached_property
    def _deepest(self) -> tuple[int, ...]:
        """How deep the first k of `paths` go."""
        return tuple(accumulate(map(len, self.paths), max, initial=0))

    @cached_property
    def _within(self) -> tuple[tuple[int, ...], ...]:
        """For every depth, which of `paths` go no deeper."""
        depths = range(self.depth + 1)
        return tuple(
            tuple(i for i, path in enumerate(self.paths) if len(path) <= depth) for depth in depths
        )

    def crop(self, budget: Sequence[int], room: Sequence[int]) -> "Crop":
        """Of every row the first `budget[b]` nodes that are no deeper than `room[b]`, whatever the other rows keep.

        At least one row must have a budget.
        """
        assert any(budget)
        depth = max(min(self._deepest[num], left) for num, left in zip(budget, room, strict=True))
        limits = [
            left if left < self._deepest[num] else depth
            for num, left in zip(budget, room, strict=True)
        ]
        kept = [self._within[limit][:num] for num, limit in zip(budget, limits, strict=True)]
        tree = _cut(self, max(row[-1] for row in kept if row) + 1, depth)
        lengths = tuple(len(row) + 1 for row in kept)
        parts = {limit: _arrange(tree, limit, max(lengths)) for limit in limits}
        joined = parts[depth] if len(parts) == 1 else _stack([parts[limit] for limit in limits])
        return Crop(tree, *joined, lengths)


def _by_depth(paths: Iterable[Sequence[int]]) -> list[RankPath]:
    return sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path))


def _elders_first(paths: Sequence[Sequence[int]]) -> tuple[RankPath, ...]:
    """The paths as given, but for parents and earlier siblings, which come before."""
    known = {tuple(path) for path in paths}
    ordered: dict[RankPath, None] = {}
    for path in paths:
        for end in range(1, len(path) + 1):
            siblings = ((*path[: end - 1], rank) for rank in range(path[end - 1] + 1))
            ordered |= dict.fromkeys(sibling for sibling in siblings if sibling in known)
    return tuple(ordered)


@dataclass(frozen=True)
class Crop:
    """What is grown of a static tree, and what each row keeps of that.

    tree: as much as some row keeps. nodes: of `tree`, in the order in which the row keeps them; topology: the tree that they
    form in this order. lengths: how many of them the row keeps, root included.
    """

    tree: StaticTree
    nodes: Int[Tensor, "#B n"]
    topology: Topology
    lengths: tuple[int, ...]

    def arrange(self, values: Shaped[Tensor, "B N *rest"]) -> Shaped[Tensor, "B n *rest"]:
        """From the order of `tree` to the order of `nodes`."""
        row = torch.arange(len(values), device=values.device)[:, None]
        return values[row, self.nodes]


Arranged: TypeAlias = tuple[Int[Tensor, "#B n"], Topology]


@lru_cache(maxsize=256)
def _cut(tree: StaticTree, num_drafts: int, depth: int) -> StaticTree:
    """The tree of the first so many drafts, without those that are deeper."""
    kept = tuple(path for path in tree.paths[:num_drafts] if len(path) <= depth)
    if len(kept) == tree.num_drafts:
        return tree
    number = {path: i for i, path in enumerate(_by_depth(tree.paths), 1)}
    places = [0, *(number[path] for path in _by_depth(kept))]
    device = tree.ranks.device
    return replace(StaticTree.from_paths(kept, device), places=upload(places, device))


@lru_cache(maxsize=256)
def _arrange(tree: StaticTree, limit: int, num_nodes: int) -> Arranged:
    """The first nodes in the order of `paths`, those deeper than `limit` after all others."""
    number = {path: i for i, path in enumerate([(), *_by_depth(tree.paths)])}
    ordered = [(), *sorted(tree.paths, key=lambda path: len(path) > limit)][:num_nodes]
    place = {path: i for i, path in enumerate(ordered)}
    parents = [-1, *(place[path[:-1]] for path in ordered[1:])]
    device = tree.ranks.device
    nodes = upload([[number[path] for path in ordered]], device)
    if parents == list(range(-1, num_nodes - 1)):
        return nodes, Topology.chain(num_nodes, device)
    max_children = max(Counter(parents).values())
    return nodes, Topology(
        upload([parents], device), max_depth=max(map(len, ordered)), max_children=max_children
    )


def _stack(parts: Sequence[Arranged]) -> Arranged:
    """One row of each."""
    topologies = [topology for _, topology in parts]
    stacked = Topology(
        torch.cat([topology.parents for topology in topologies]),
        max_depth=max(topology.max_depth for topology in topologies),
        max_children=max(topology.max_children for topology in topologies),
    )
    stacked.__dict__["ancestors"] = torch.cat([topology.ancestors for topology in topologies])
    return torch.cat([nodes for nodes, _ in parts]), stacked
