"""Draft trees of fixed shape, and the part of one that a row with a small budget or room keeps."""

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

    Attributes:
        topology: One row of nodes, sorted by depth.
        ranks: The rank of each node among the likeliest tokens after its parent.
        levels: The first node of every depth, and N.
        num_fed: The nodes of every depth that must be fed to the drafter to draft their children.
        paths: The path of ranks of every draft, in the order in which a smaller budget keeps
            them.
        original_nodes: The index of each node in the tree that this one was pruned from.
    """

    topology: Topology
    ranks: Int[Tensor, " N"]
    levels: tuple[int, ...]
    num_fed: tuple[int, ...]
    paths: tuple[RankPath, ...]
    original_nodes: Int[Tensor, " N"]

    @staticmethod
    def from_paths(
        paths: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> "StaticTree":
        """Build a tree from the path of ranks of every draft.

        Args:
            paths: The most useful first, e.g. [(0,), (0, 0), (1,)]: a row with a budget of k
                keeps the first k. Parents and earlier siblings are moved before a path that
                precedes them.

        Raises:
            ValueError: For an empty path, a negative rank or a missing parent.
        """
        if not paths or not all(len(path) and min(path) >= 0 for path in paths):
            raise ValueError(
                "a static tree is a list of paths of ranks from 0 on, such as [[0], [1], [0, 0]]; "
                f"got {paths}"
            )
        ordered = _by_depth(paths)
        topology = Topology.from_paths(ordered, device)
        depths = [0, *map(len, ordered)]
        levels = [depths.index(depth) for depth in range(depths[-1] + 1)]
        has_children = {path[:-1] for path in ordered}
        num_fed = [1] + [0] * depths[-1]
        for node, path in enumerate(ordered, start=1):
            if path in has_children:
                num_fed[len(path)] = node - levels[len(path)] + 1
        return StaticTree(
            topology=topology,
            ranks=upload([0, *(path[-1] for path in ordered)], device),
            levels=(*levels, len(depths)),
            num_fed=tuple(num_fed),
            paths=_parents_first(paths),
            original_nodes=torch.arange(len(depths), device=device),
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
        widths = [1] * (self.depth + 1)
        for path in self.paths:
            widths[len(path)] = max(widths[len(path)], path[-1] + 1)
        return tuple(widths)

    @cached_property
    def fed_trees(self) -> tuple[Topology, ...]:
        """For every depth, the tree up to and including the nodes of that depth that are fed."""
        whole = self.topology
        trees = []
        for begin, num_fed in zip(self.levels, self.num_fed, strict=False):
            end = begin + num_fed
            tree = Topology(
                whole.parents[:, :end], whole.is_chain, whole.max_depth, whole.max_children
            )
            tree.__dict__["ancestors"] = whole.ancestors[:, :end, :end]
            trees.append(tree)
        return tuple(trees)

    def to(self, device: torch.device) -> "StaticTree":
        """Return this tree on a device."""
        whole = self.topology
        moved = Topology(
            whole.parents.to(device), whole.is_chain, whole.max_depth, whole.max_children
        )
        return replace(
            self,
            topology=moved,
            ranks=self.ranks.to(device),
            original_nodes=self.original_nodes.to(device),
        )

    @cached_property
    def _max_depths(self) -> tuple[int, ...]:
        """The depth of the tree of the first k of `paths`, for every k."""
        return tuple(accumulate(map(len, self.paths), max, initial=0))

    @cached_property
    def _paths_within(self) -> tuple[tuple[int, ...], ...]:
        """For every depth, the indexes of the `paths` that are no deeper."""
        depths = range(self.depth + 1)
        return tuple(
            tuple(i for i, path in enumerate(self.paths) if len(path) <= depth) for depth in depths
        )

    def crop(self, budget: Sequence[int], room: Sequence[int]) -> "Crop":
        """Keep the first `budget[b]` nodes of every row that are no deeper than `room[b]`.

        What a row keeps does not depend on the other rows. At least one row must have a budget.
        """
        assert any(budget)
        rows = list(zip(budget, room, strict=True))
        depth = max(min(self._max_depths[num], left) for num, left in rows)
        limits = []
        kept = []
        for num, left in rows:
            # Rows that their room does not bind share one limit, hence one cached order.
            limit = left if left < self._max_depths[num] else depth
            limits.append(limit)
            kept.append(self._paths_within[limit][:num])
        last_path = max(indexes[-1] for indexes in kept if indexes)
        tree = _prune(self, last_path + 1, depth)
        lengths = tuple(len(indexes) + 1 for indexes in kept)
        orders = {limit: _order(tree, limit, max(lengths)) for limit in limits}
        order = orders[depth] if len(orders) == 1 else _stack([orders[limit] for limit in limits])
        return Crop(tree, order.nodes, order.topology, lengths, order.is_in_order)


def _by_depth(paths: Iterable[Sequence[int]]) -> list[RankPath]:
    unique = {tuple(path) for path in paths}
    return sorted(unique, key=lambda path: (len(path), path))


def _parents_first(paths: Sequence[Sequence[int]]) -> tuple[RankPath, ...]:
    """Return the paths in the given order, but after their parents and earlier siblings."""
    known = {tuple(path) for path in paths}
    ordered: dict[RankPath, None] = {}
    for path in paths:
        for depth, last_rank in enumerate(path):
            for rank in range(last_rank + 1):
                sibling = (*path[:depth], rank)
                if sibling in known:
                    ordered[sibling] = None
    return tuple(ordered)


@dataclass(frozen=True)
class Crop:
    """The part of a static tree that is grown, and what each row keeps of it.

    Attributes:
        tree: The nodes that some row keeps.
        nodes: Nodes of `tree`, in the order in which each row keeps them.
        topology: The tree that they form in this order.
        lengths: How many of them each row keeps, root included.
        is_in_order: Every row keeps them in the order of `tree`.
    """

    tree: StaticTree
    nodes: Int[Tensor, "#B n"]
    topology: Topology
    lengths: tuple[int, ...]
    is_in_order: bool = False

    def arrange(self, values: Shaped[Tensor, "B N *rest"]) -> Shaped[Tensor, "B n *rest"]:
        """Reorder values from the order of `tree` to the order of `nodes`."""
        if self.is_in_order:
            return values[:, : self.nodes.shape[1]]
        row = torch.arange(len(values), device=values.device)[:, None]
        return values[row, self.nodes]


@dataclass(frozen=True)
class _Order:
    """Nodes of a tree in the order in which rows keep them; see `Crop`."""

    nodes: Int[Tensor, "#B n"]
    topology: Topology
    is_in_order: bool = False


@lru_cache(maxsize=256)
def _prune(tree: StaticTree, num_drafts: int, depth: int) -> StaticTree:
    """Return the tree of the first `num_drafts` drafts without those that are deeper."""
    kept = tuple(path for path in tree.paths[:num_drafts] if len(path) <= depth)
    if len(kept) == tree.num_drafts:
        return tree
    index = {path: node for node, path in enumerate(_by_depth(tree.paths), start=1)}
    original_nodes = [0, *(index[path] for path in _by_depth(kept))]
    device = tree.ranks.device
    pruned = StaticTree.from_paths(kept, device)
    return replace(pruned, original_nodes=upload(original_nodes, device))


@lru_cache(maxsize=256)
def _order(tree: StaticTree, limit: int, num_nodes: int) -> _Order:
    """Return the first nodes in the order of `paths`, those deeper than `limit` last."""
    node_of = {path: node for node, path in enumerate([(), *_by_depth(tree.paths)])}
    ordered = [(), *sorted(tree.paths, key=lambda path: len(path) > limit)][:num_nodes]
    index = {path: i for i, path in enumerate(ordered)}
    parents = [-1, *(index[path[:-1]] for path in ordered[1:])]
    device = tree.ranks.device
    order = [node_of[path] for path in ordered]
    nodes, is_in_order = upload([order], device), order == list(range(num_nodes))
    if parents == list(range(-1, num_nodes - 1)):
        return _Order(nodes, Topology.chain(num_nodes, device), is_in_order)
    topology = Topology(
        upload([parents], device),
        max_depth=max(map(len, ordered)),
        max_children=max(Counter(parents).values()),
    )
    return _Order(nodes, topology, is_in_order)


def _stack(orders: Sequence[_Order]) -> _Order:
    """Stack one row of each."""
    topologies = [order.topology for order in orders]
    stacked = Topology(
        torch.cat([topology.parents for topology in topologies]),
        max_depth=max(topology.max_depth for topology in topologies),
        max_children=max(topology.max_children for topology in topologies),
    )
    stacked.__dict__["ancestors"] = torch.cat([topology.ancestors for topology in topologies])
    return _Order(torch.cat([order.nodes for order in orders]), stacked)
