"""What the target recently held likely after each token fills a draft tree of fixed shape (Luo et al., arXiv 2408.08696)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.proposers.shapes import TYPICAL_RANK_ACCEPTANCE, best_tree, read_paths
from specresearch.proposers.static_tree import StaticTree


class TokenRecycling(Proposer):
    """Keeps the target's last `top_k` likeliest successors of every token; needs no model and no training.

    Successors come from every node that a step verifies, refused drafts too; prefill computes no logits and teaches nothing.
    A token not met yet is followed by token 0, a wasted draft.

    num_draft_tokens, depth: nodes and levels of the tree that is best for a typical acceptance by rank. paths: another tree,
    as a list of paths of child ranks or as a JSON file; its size is the number of drafts.
    warm: one memory for all requests, which outlives them. False: each request has its own and begins with nothing, so that
    its steps do not depend on which requests ran before or beside it.
    """

    kind = DraftKind(trees=True)

    def __init__(
        self,
        num_draft_tokens: int = 80,
        top_k: int = 8,
        depth: int = 6,
        paths: Sequence[Sequence[int]] | str | None = None,
        warm: bool = False,
    ) -> None:
        check_num_draft_tokens(num_draft_tokens)
        if top_k < 1 or depth < 1:
            raise ValueError(
                f"proposer.top_k={top_k}, proposer.depth={depth}: both must be at least 1"
            )
        if paths is None:
            paths = best_tree(TYPICAL_RANK_ACCEPTANCE[:top_k], num_draft_tokens, depth).paths
        self.tree = StaticTree.from_paths(read_paths(paths) if isinstance(paths, str) else paths)
        if max(self.tree.widths) > top_k:
            raise ValueError(
                f"a path has rank {max(self.tree.widths) - 1} and proposer.top_k={top_k} successors are kept; raise top_k"
            )
        self.num_draft_tokens = self.tree.num_drafts
        self.top_k, self.warm = top_k, warm
        self._successors = torch.zeros(
            (0, 0, top_k), dtype=torch.int32
        )  # [S, V + 1, k]; row V takes what nobody reads

    @property
    def memory(self) -> Literal["cold", "warm"]:
        return "warm" if self.warm else "cold"

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "TokenRecycling":
        """A table for the few tokens of `target`, and a tree small enough to be certified."""
        top_k = min(settings.get("top_k", 8), target.vocab_size)
        return cls(**settings | {"top_k": top_k, "num_draft_tokens": 24, "depth": 3})

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.top_k > target.vocab_size:
            raise ValueError(
                f"proposer.top_k={self.top_k} exceeds the vocabulary of {target.vocab_size}; lower it"
            )
        self.tree = self.tree.to(target.device)
        shape = (1 if self.warm else num_slots, target.vocab_size + 1, self.top_k)
        self._successors = torch.zeros(shape, dtype=torch.int32, device=target.device)

    def reset(self) -> None:
        """Forget everything, as if no request had been decoded."""
        self._successors.zero_()

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        crop = self.tree.crop(budget, batch.room)
        memory, level, tree = self._memory(batch), batch.roots, crop.tree
        tokens, parents = [level], tree.topology.parents[0]
        for above, begin, end in zip(tree.levels, tree.levels[1:], tree.levels[2:], strict=False):
            before = level[:, parents[begin:end] - above]  # [B, n]
            level = self._successors[memory, before, tree.ranks[begin:end]].long()
            tokens.append(level)
        return Proposal(
            crop.arrange(torch.cat(tokens, dim=1)),
            crop.topology,
            upload(crop.lengths, batch.device),
            host_lengths=crop.lengths,
        )

    def _memory(self, batch: Batch) -> Int[Tensor, "B 1"]:
        return (
            torch.zeros_like(batch.roots)
            if self.warm
            else upload(batch.slots, batch.device)[:, None]
        )

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Of several nodes with one token the last counts, whatever order the device writes in."""
        best = output.logits.topk(self.top_k, dim=-1).indices.flatten(0, 1)  # [B N, k]
        num_rows = self._successors.shape[1]
        valid = (
            torch.arange(proposal.topology.num_nodes, device=batch.device)
            < proposal.lengths[:, None]
        )
        places = torch.where(
            valid, self._memory(batch) * num_rows + proposal.token_ids, num_rows - 1
        ).flatten()
        ordered, order = places.sort(stable=True)
        last = order[
            torch.searchsorted(ordered, places, right=True) - 1
        ]  # node that holds the same token last
        self._successors.flatten(0, 1)[places] = best[last].to(self._successors.dtype)

    def finish(self, slots: Sequence[int]) -> None:
        if not self.warm:
            self._successors[list(slots)] = 0
