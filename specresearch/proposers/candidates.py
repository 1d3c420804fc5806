"""The nodes that a dynamic tree considers, and the choice of the most confident ones."""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.proposal import Topology, upload


@dataclass(frozen=True)
class Candidates:
    """Every node considered, level by level.

    The first level has k candidates. Each of the k that are expanded has k children.

    Attributes:
        tokens: Of each level, like all lists here.
        confidence: Logarithm of the probability of the path.
        log_q: Logarithm of the probability of the node given its parent.
        frontiers: The candidates that were expanded, counted over all levels.
    """

    tokens: list[Int[Tensor, "B _"]]
    confidence: list[Float[Tensor, "B _"]]
    log_q: list[Float[Tensor, "B _"]]
    frontiers: list[Int[Tensor, "B k"]]

    def extend(
        self,
        tokens: Int[Tensor, "B P"],
        confidence: Float[Tensor, "B P"],
        log_q: Float[Tensor, "B P"],
        frontier: Int[Tensor, "B k"],
    ) -> int:
        """Add the children of a frontier; return the number of candidates before them."""
        num_before = sum(level.shape[1] for level in self.tokens)
        self.tokens.append(tokens)
        self.confidence.append(confidence)
        self.log_q.append(log_q)
        self.frontiers.append(frontier)
        return num_before

    def _parents(self, chosen: Int[Tensor, "B n"]) -> Int[Tensor, "B n"]:
        """Return the parent of these candidates among the candidates, plus one; 0 is the root."""
        if not self.frontiers:
            return torch.zeros_like(chosen)
        k = self.frontiers[0].shape[1]
        expanded = torch.cat(self.frontiers, dim=1)
        # The children of all frontiers follow the first level, k each.
        parents = expanded.gather(1, (chosen - k).clamp(min=0) // k) + 1
        return parents.masked_fill(chosen < k, 0)

    def best(
        self, roots: Int[Tensor, "B 1"], num_kept: Int[Tensor, " B"], num_nodes: int
    ) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"], Float[Tensor, "B N"]]:
        """Return the tree of the `num_kept[b]` most confident candidates of each row.

        Padding comes last, as a chain that nobody reads.

        Args:
            num_nodes: The largest number to keep, known on the host.

        Returns:
            The tokens, parents and scores of all nodes, root first.
        """
        tokens, confidence, log_q = (
            torch.cat(levels, dim=1) for levels in (self.tokens, self.confidence, self.log_q)
        )
        num_candidates = tokens.shape[1]
        best = confidence.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes]
        index = torch.arange(num_nodes, device=roots.device)
        is_kept = index < num_kept[:, None]
        # Back in the order of the candidates, in which parents come before their children.
        order = torch.where(is_kept, best, num_candidates + index).argsort(dim=1)
        chosen = best.gather(1, order)
        new_index = roots.new_zeros((len(roots), num_candidates + 1))
        new_index.scatter_(1, chosen + 1, index.expand_as(chosen) + 1)
        parents = new_index.gather(1, self._parents(chosen))
        parents = torch.where(is_kept, parents, index)
        parents = torch.where(parents <= index, parents, 0)  # only if confidences are all zero
        scores = log_q.gather(1, chosen).exp()
        return (
            torch.cat([roots, tokens.gather(1, chosen)], dim=1),
            F.pad(parents, (1, 0), value=-1),
            F.pad(scores, (1, 0), value=1.0),
        )


class FedTree:
    """The nodes of a growing tree that the drafter is fed: the root, then k on every level.

    All levels are written to the same memory; a level's topology is a view of it.
    """

    def __init__(self, num_rows: int, depth: int, k: int, device: torch.device) -> None:
        self._k = k
        self._num_nodes = 1
        self._depth, alone = _levels(depth, k, device)
        self._ancestors = alone.repeat(num_rows, 1, 1)
        self._parents = self._depth.repeat(num_rows, 1) - 1

    def with_level(self, parents: Int[Tensor, "B k"]) -> Topology:
        """Return the tree with one more level.

        Args:
            parents: The nodes of the last level, counted from its first, below which the new nodes
                hang.
        """
        begin, end = self._num_nodes, self._num_nodes + self._k
        above = parents + max(begin - self._k, 0)
        old = self._ancestors[:, :begin, :begin]
        index = above[:, :, None].expand(-1, -1, begin)
        self._ancestors[:, begin:end, :begin] = old.gather(1, index)
        self._parents[:, begin:end] = above
        self._num_nodes = end
        level = Topology(
            self._parents[:, :end],
            max_depth=(end - 1) // self._k,
            max_children=self._k,
        )
        level.__dict__["ancestors"] = self._ancestors[:, :end, :end]
        level.__dict__["depth"] = self._depth[:, :end]
        return level


@lru_cache(maxsize=64)
def _levels(
    depth: int, k: int, device: torch.device
) -> tuple[Int[Tensor, "1 n"], Bool[Tensor, "1 n n"]]:
    """Return the depth of every node that is fed, and the relation of each to itself alone."""
    depths = [0, *(level for level in range(1, max(depth, 2)) for _ in range(k))]
    return upload([depths], device), torch.eye(len(depths), dtype=torch.bool, device=device)[None]
