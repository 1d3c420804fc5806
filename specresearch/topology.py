"""The shape of a draft tree, as a tensor of parents; every other relation follows from it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor


def upload(values: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a host list to the device without waiting for queued work.

    `torch.tensor(..., device=)` would wait.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree: node i hangs below `parents[i] < i`; the root's parent is -1.

    Attributes:
        is_chain: True if `parents[i] == i - 1` in every row. A Python bool, so that fast paths
            cost no device sync.
        max_depth: Upper bound of the depth, known on the host. A builder that knows the two
            bounds saves the sync of computing them.
        max_children: Upper bound of the children of a node, known on the host.
    """

    parents: Int[Tensor, "#B N"]
    is_chain: bool = False
    max_depth: int = -1
    max_children: int = -1

    def __post_init__(self) -> None:
        num_nodes = self.num_nodes
        if num_nodes == 1:
            object.__setattr__(self, "is_chain", True)
        if self.max_depth >= 0 and self.max_children >= 0:
            return
        if self.is_chain:
            depth = num_nodes - 1
            width = min(num_nodes - 1, 1)
        else:
            depth = int(self.depth.max())  # sync
            width = int(self._num_siblings_before.max()) + 1  # sync
        object.__setattr__(self, "max_depth", depth)
        object.__setattr__(self, "max_children", width)

    @staticmethod
    @lru_cache(maxsize=256)
    def chain(num_nodes: int, device: torch.device | str = "cpu") -> "Topology":
        """Return the chain of `num_nodes` nodes, root included; instances are shared."""
        return Topology(torch.arange(-1, num_nodes - 1, device=device)[None], is_chain=True)

    @staticmethod
    def from_parents(parents: Int[Tensor, "#B N"]) -> "Topology":
        """Build and validate a tree.

        Raises:
            ValueError: Unless `parents[0] == -1` and `0 <= parents[i] < i`.
        """
        index = torch.arange(parents.shape[1], device=parents.device)
        valid = (parents < index) & (parents >= 0)
        valid[:, 0] = parents[:, 0] == -1
        if not bool(valid.all()):  # sync
            row, node = (~valid).nonzero()[0].tolist()
            raise ValueError(
                f"parents[{row}, {node}] = {int(parents[row, node])}: the root's parent is -1 and "
                "every other parent comes before its child; sort the nodes by depth"
            )
        return Topology(parents, is_chain=bool((parents == index - 1).all()))  # sync

    @staticmethod
    def from_paths(
        paths: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> "Topology":
        """Build a static tree from the path of child ranks of every node.

        Args:
            paths: For example `[(0,), (1,), (0, 0)]`, in any order.

        Raises:
            ValueError: If a prefix of a path is missing.
        """
        unique = {tuple(path) for path in paths}
        ordered = sorted(unique, key=lambda path: (len(path), path))
        index: dict[tuple[int, ...], int] = {(): 0}
        index.update((path, node) for node, path in enumerate(ordered, start=1))
        parents = [-1]
        for path in ordered:
            parent = path[:-1]
            if parent not in index:
                raise ValueError(
                    f"path {list(path)} has no parent {list(parent)}: "
                    "list every prefix of every path"
                )
            parents.append(index[parent])
        is_chain = parents == list(range(-1, len(ordered)))
        return Topology(
            upload([parents], device),
            is_chain=is_chain,
            max_depth=max(map(len, ordered), default=0),
            max_children=max(Counter(parents).values()) if ordered else 0,
        )

    def with_level(self, parents: Int[Tensor, "#B M"], max_children: int) -> "Topology":
        """Return this tree with one more level. Never syncs.

        Args:
            parents: The nodes of this tree below which the M new nodes hang.
            max_children: Upper bound of the new nodes below one parent.
        """
        rows, num_new = parents.shape
        grown = Topology(
            torch.cat([self.parents.expand(rows, -1), parents], dim=1),
            max_depth=self.max_depth + 1,
            max_children=max(self.max_children, max_children),
        )
        old = self.ancestors.expand(rows, -1, -1)  # [B, N, N]
        above_new = old.gather(1, parents[:, :, None].expand(-1, -1, self.num_nodes))
        itself = torch.eye(num_new, dtype=torch.bool, device=parents.device)
        new = torch.cat([above_new, itself.expand(rows, -1, -1)], dim=2)  # [B, M, N + M]
        # Fill the cache: deriving the ancestors from the parents would repeat the old levels.
        grown.__dict__["ancestors"] = torch.cat([F.pad(old, (0, num_new)), new], dim=1)
        return grown

    @property
    def num_nodes(self) -> int:
        """The nodes of a row, root and padding included."""
        return self.parents.shape[1]

    @cached_property
    def ancestors(self) -> Bool[Tensor, "#B N N"]:
        """`ancestors[b, i, j]`: node j lies on the path from the root to node i, i included."""
        num_nodes = self.num_nodes
        device = self.parents.device
        if self.is_chain:
            return torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=device).tril()[None]
        index = torch.arange(num_nodes, device=device)
        reach = (self.parents[:, :, None] == index) | (index[:, None] == index)
        longest = num_nodes - 1 if self.max_depth < 0 else self.max_depth
        hops = 1
        while hops < longest:  # each product doubles the reach of a path
            reach = (reach.float() @ reach.float()) > 0
            hops *= 2
        return reach

    @cached_property
    def depth(self) -> Int[Tensor, "#B N"]:
        """Edges between the root and each node."""
        return self.ancestors.sum(-1) - 1

    @cached_property
    def earlier_siblings(self) -> Bool[Tensor, "#B N N"]:
        """`earlier_siblings[b, i, j]`: node j hangs below the parent of node i, and j < i."""
        return (self.parents[:, :, None] == self.parents[:, None, :]).tril(-1)

    @cached_property
    def _num_siblings_before(self) -> Int[Tensor, "#B N"]:
        return self.earlier_siblings.sum(-1)

    @cached_property
    def children(self) -> Int[Tensor, "#B N R"]:
        """The children of each node in index order, padded with -1; R = `max_children`."""
        rows, num_nodes = self.parents.shape
        device = self.parents.device
        table = self.parents.new_full((rows, num_nodes, self.max_children + 1), -1)
        row = torch.arange(rows, device=device)[:, None]
        node = torch.arange(1, num_nodes, device=device)[None]
        table[row, self.parents[:, 1:], self._num_siblings_before[:, 1:]] = node
        return table[:, :, : self.max_children]
