"""Heads guess the next few tokens from one hidden state, each its own place; the guesses fill a tree (arXiv 2401.10774)."""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import torch

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.proposers.shapes import TYPICAL_RANK_ACCEPTANCE, read_paths, small_paths
from specresearch.proposers.static_tree import RankPath, StaticTree
from specresearch.sampling import penalize

FADE = 0.8


class Medusa(Proposer):
    """The Cartesian product of the heads' likeliest tokens, cut to a static tree; point masses at every temperature.

    A node at depth d holds a token of head d - 1, whatever its parent is. A prompt of one token has no hidden state yet, so
    its first step drafts nothing.

    head: a folder, hub id or `zoo:` name with its `revision`, or loaded heads. num_draft_tokens: nodes of the tree that
    `likeliest_paths` makes. paths: another tree, as a list of paths of ranks or as a JSON file; its size is the number of
    drafts.
    """

    kind = DraftKind(trees=True, scored=True)
    hidden_layers = (FINAL_NORM,)

    def __init__(
        self,
        head: str | MedusaHeads | None = None,
        num_draft_tokens: int = 63,
        paths: Sequence[Sequence[int]] | str | None = None,
        revision: str | None = None,
    ) -> None:
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        self.head, self.revision = head, revision
        self.paths = read_paths(paths) if isinstance(paths, str) else paths
        if self.paths is not None:
            self.num_draft_tokens = StaticTree.from_paths(self.paths).num_drafts
        self._known: set[int] = set()

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Medusa":
        """Drafts with random heads that fit `target`, in a tree that fits its vocabulary."""
        config: Any = target.model.config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            heads = MedusaHeads(config.hidden_size, target.vocab_size, 3)
        return cls(**settings | {"head": heads, "paths": small_paths(target.vocab_size)})

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if not self.head:
            raise ValueError(
                "proposer.head names no Medusa heads; set it to a folder or hub id, see docs/proposers/medusa.md"
            )
        if isinstance(self.head, str):
            self.head = MedusaHeads.from_pretrained(self.head, revision=self.revision)
        self.heads, self.target = self.head, target
        self.heads.check_fit(target)
        self.heads.to(device=target.device, dtype=target.dtype).eval()
        paths = (
            likeliest_paths(len(self.heads), self.num_draft_tokens)
            if self.paths is None
            else self.paths
        )
        self.tree = StaticTree.from_paths(paths, target.device)
        if self.tree.depth > len(self.heads) or max(self.tree.widths) > target.vocab_size:
            raise ValueError(
                f"the tree has {self.tree.depth} levels and rank {max(self.tree.widths) - 1}, and there are {len(self.heads)} "
                f"heads and {target.vocab_size} tokens; change proposer.paths"
            )
        self.num_draft_tokens = self.tree.num_drafts
        self._level = self.tree.topology.depth[0] - 1  # which head fills each node
        self._state = torch.zeros(
            (num_slots, self.heads.hidden_size), dtype=target.dtype, device=target.device
        )
        self._known = set()

    def describe(self) -> str | None:
        if not isinstance(self.head, MedusaHeads):
            return None
        heads = f"{len(self.head)} Medusa heads of {self.head.base_model or 'a target that they do not name'}"
        lm_heads = (
            "the target's LM head" if self.head.vocab_size is None else "LM heads of their own"
        )
        return f"{heads}; blocks in each: {self.head.num_layers}; read the final norm of the target; end in {lm_heads}"

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        self._known -= {row.slot for row in rows}
        last = [len(row.tokens) - 2 for row in rows]
        if output is not None:
            self._keep([row.slot for row in rows], output, last)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Keep the hidden state from which the target said the next root."""
        ends = zip(verdict.path.tolist(), verdict.num_accepted.tolist(), strict=True)
        self._keep(batch.slots, output, [path[num_accepted] for path, num_accepted in ends])

    def _keep(self, slots: Sequence[int], output: ModelOutput, nodes: Sequence[int]) -> None:
        """nodes: of each row, where the hidden state stands; -1 where there is none."""
        there = [b for b, node in enumerate(nodes) if node >= 0]
        kept = [slots[b] for b in there]
        rows, columns = upload([there, [nodes[b] for b in there]], self._state.device, torch.long)
        self._state[upload(kept, self._state.device, torch.long)] = output.hidden[0][rows, columns]
        self._known.update(kept)

    @torch.inference_mode()
    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        budget = [
            allowed if slot in self._known else 0
            for slot, allowed in zip(batch.slots, budget, strict=True)
        ]
        if not any(budget):
            return Proposal.empty(batch.roots)
        state = self._state[upload(batch.slots, batch.device)]
        logits = self.heads(state, lm_head_of(self.target)).to(batch.device)
        logits = penalize(logits[:, : self.tree.depth], batch.sampling)  # [B, K, V]
        best = logits.topk(max(self.tree.widths), dim=-1)
        crop = self.tree.crop(budget, batch.room)
        nodes = crop.tree.places[crop.nodes[:, 1:]]  # [#B, n]
        row = torch.arange(len(batch), device=batch.device)[:, None]
        level, ranks = self._level[nodes], self.tree.ranks[nodes]
        own = (best.values[row, level, ranks] - logits.logsumexp(-1)[row, level]).exp()
        return Proposal(
            torch.cat([batch.roots, best.indices[row, level, ranks]], dim=1),
            crop.topology,
            upload(crop.lengths, batch.device),
            scores=torch.cat([torch.ones_like(own[:, :1]), own], dim=1),
            host_lengths=crop.lengths,
        )

    def finish(self, slots: Sequence[int]) -> None:
        self._known -= set(slots)


def likeliest_paths(num_heads: int, num_nodes: int) -> list[RankPath]:
    """The nodes most likely to be accepted, the likeliest first, if the token of rank r of head i is right with probability
    `TYPICAL_RANK_ACCEPTANCE[r]` * FADE^i, independently of the others: a node's probability is the product along its path.

    Fewer than `num_nodes` where the heads have no more.
    """

    def chance(path: RankPath) -> float:
        return math.prod(TYPICAL_RANK_ACCEPTANCE[rank] * FADE**i for i, rank in enumerate(path))

    paths: list[RankPath] = []
    open_ends: list[tuple[float, RankPath]] = [(-chance((0,)), (0,))]
    while open_ends and len(paths) < num_nodes:
        _, path = heapq.heappop(open_ends)
        paths.append(path)
        followers = (
            [(*path[:-1], path[-1] + 1)] if path[-1] + 1 < len(TYPICAL_RANK_ACCEPTANCE) else []
        )
        followers += [(*path, 0)] if len(path) < num_heads else []
        for follower in followers:
            heapq.heappush(open_ends, (-chance(follower), follower))
    return paths
