"""Token recycling: the target's recent candidates after each token fill a static draft tree.

Luo et al. (arXiv 2408.08696).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.proposers.base import Proposer, number_or
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.sequoia import TYPICAL_RANK_ACCEPTANCE, best_tree
from specresearch.proposers.shapes import read_paths
from specresearch.proposers.static_tree import StaticTree
from specresearch.sampling import topk

LARGEST = 80  # nodes of a tree
MOST_WAITING = 64  # plain steps kept before their successors are stored


class _Plain(NamedTuple):
    """A step without drafts: the root of every row, and its successors."""

    slots: Sequence[int]
    token_ids: Int[Tensor, "B 1"]
    best: Int[Tensor, "B 1 k"]


class TokenRecycling(Proposer):
    """Keeps the target's last `top_k` likeliest successors of every token.

    Needs no model and no training. Successors come from every node that a step verifies, rejected
    drafts too; prefill computes no logits and adds nothing. A token that was never verified is
    followed by token 0, a wasted draft. The score of a node is the typical acceptance of its rank.

    Args:
        num_draft_tokens: Nodes of the tree that is best for a typical acceptance by rank.
        depth: Levels of that tree.
        paths: Another tree, as a list of paths of child ranks or as a JSON file; its size is the
            number of drafts.
        warm: Keep one table for all requests, which outlives them. Otherwise each request has its
            own empty one, so that its steps do not depend on other requests.
    """

    def __init__(
        self,
        num_draft_tokens: NumDrafts = LARGEST,
        top_k: int = 8,
        depth: int = 6,
        paths: Sequence[Sequence[int]] | str | None = None,
        warm: bool = False,
    ) -> None:
        num_nodes = number_or(num_draft_tokens, LARGEST)
        if top_k < 1 or depth < 1:
            raise ValueError(
                f"proposer.top_k={top_k}, proposer.depth={depth}: both must be at least 1"
            )
        if paths is None:
            paths = best_tree(TYPICAL_RANK_ACCEPTANCE[:top_k], num_nodes, depth).paths
            if num_draft_tokens == AUTO:
                self.shapes = (DraftShape(len(paths), "static"),)
        self.paths = read_paths(paths) if isinstance(paths, str) else paths
        self.tree = StaticTree.from_paths(self.paths)
        width = max(self.tree.widths)
        if width > top_k:
            raise ValueError(
                f"a path has rank {width - 1} and proposer.top_k={top_k} successors are kept; "
                "raise top_k"
            )
        self.num_draft_tokens = self.tree.num_drafts
        self.kind = DraftKind(trees=True, scored=True, max_depth=self.tree.depth)
        self.top_k, self.warm = top_k, warm
        # [S, V + 1, k]; the last row of a table takes the successors of padding
        self._successors = torch.zeros((0, 0, top_k), dtype=torch.int32)
        self._waiting: list[_Plain] = []

    @property
    def shape_now(self) -> DraftShape:
        return DraftShape(self.num_draft_tokens, "static")

    def draft_as(self, shape: DraftShape) -> None:
        super().draft_as(shape)
        if not shape.num_draft_tokens:
            return
        paths = shape.paths or self.paths[: shape.num_draft_tokens]
        self.tree = StaticTree.from_paths(paths, self._successors.device)
        self.kind = replace(self.kind, max_depth=self.tree.depth)

    @property
    def memory(self) -> Literal["cold", "warm"]:
        return "warm" if self.warm else "cold"

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "TokenRecycling":
        """Return a proposer for a tiny vocabulary, with a tree small enough to be certified."""
        top_k = min(settings.get("top_k", 8), target.vocab_size)
        return cls(**settings | {"top_k": top_k, "num_draft_tokens": 24, "depth": 3})

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.top_k > target.vocab_size:
            raise ValueError(
                f"proposer.top_k={self.top_k} exceeds the vocabulary of {target.vocab_size}; "
                "lower it"
            )
        self.tree = self.tree.to(target.device)
        typical = list(TYPICAL_RANK_ACCEPTANCE)
        typical += typical[-1:] * (self.top_k - len(typical))
        self._typical = upload(typical, target.device)  # of each rank; the root's is not read
        num_tables = 1 if self.warm else num_slots
        shape = (num_tables, target.vocab_size + 1, self.top_k)
        self._waiting.clear()
        self._successors = torch.zeros(shape, dtype=torch.int32, device=target.device)

    @property
    def slot_bytes(self) -> int:
        tables = self._successors
        return 0 if self.warm else tables.itemsize * math.prod(tables.shape[1:])

    def reset(self) -> None:
        """Clear all tables, as if no request had been decoded."""
        self._waiting.clear()
        self._successors.zero_()

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        self._store_waiting()
        crop = self.tree.crop(budget, batch.room)
        tree = crop.tree
        table = self._table_index(batch.slots)
        parents = tree.topology.parents[0]
        levels = [batch.roots]
        for depth in range(1, tree.depth + 1):
            first_parent, first, end = tree.levels[depth - 1 : depth + 2]
            parent_tokens = levels[-1][:, parents[first:end] - first_parent]  # [B, n]
            successors = self._successors[table, parent_tokens, tree.ranks[first:end]]
            levels.append(successors.long())
        return Proposal(
            token_ids=crop.arrange(torch.cat(levels, dim=1)),
            topology=crop.topology,
            lengths=upload(crop.lengths, batch.device),
            scores=crop.arrange(self._typical[tree.ranks].expand(len(batch), -1)),
            host_lengths=crop.lengths,
        )

    def _table_index(self, slots: Sequence[int]) -> Int[Tensor, "B 1"]:
        tables = [0] * len(slots) if self.warm else slots
        return upload(tables, self._successors.device, torch.long)[:, None]

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Store the successors of every valid node; those of plain steps wait for a draft."""
        best = topk(output.logits, self.top_k).indices  # [B, N, k]
        num_nodes = proposal.topology.num_nodes
        if num_nodes == 1:
            self._waiting.append(_Plain(batch.slots, proposal.token_ids, best))
            if len(self._waiting) >= MOST_WAITING:
                self._store_waiting()
            return
        self._store_waiting()
        node = torch.arange(num_nodes, device=batch.device)
        self._store(batch.slots, proposal.token_ids, best, node < proposal.lengths[:, None])

    def _store_waiting(self) -> None:
        """Store the successors of earlier steps without drafts."""
        if self._waiting:
            slots, token_ids, best = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self._store([*chain(*slots)], torch.cat(token_ids), torch.cat(best))

    def _store(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B N"],
        best: Int[Tensor, "B N k"],
        is_valid: Bool[Tensor, "B N"] | None = None,
    ) -> None:
        """Store the successors of nodes.

        Of several nodes with the same token the last one wins, whatever order the device writes
        in.

        Args:
            is_valid: Nodes that are not padding; None: all.
        """
        num_rows = self._successors.shape[1]
        row = self._table_index(slots) * num_rows + token_ids
        if is_valid is not None:
            row = torch.where(is_valid, row, num_rows - 1)
        row = row.flatten()
        ordered, order = row.sort(stable=True)
        last = order[torch.searchsorted(ordered, row, right=True) - 1]
        best = best.flatten(0, 1)[last]
        self._successors.flatten(0, 1)[row] = best.to(self._successors.dtype)

    def finish(self, slots: Sequence[int]) -> None:
        self._store_waiting()
        if not self.warm:
            self._successors.index_fill_(0, upload(slots, self._successors.device, torch.long), 0)
