"""Medusa heads each guess one position from one hidden state; the guesses fill a tree.

Cai et al. (arXiv 2401.10774).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.draft_vocabulary import DraftVocabulary
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.models.packed import has_packed_layers, pack_linear_layers
from specresearch.models.random_weights import Weights, name_of
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.proposers.base import Proposer, number_or
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.kept_states import KeptStates
from specresearch.proposers.partial import propose_for
from specresearch.proposers.sequoia import TYPICAL_RANK_ACCEPTANCE, likeliest_paths
from specresearch.proposers.shapes import read_paths, small_paths
from specresearch.proposers.static_tree import RankPath, StaticTree
from specresearch.request import RequestState
from specresearch.sampling import penalize, topk

FADE = 0.8
LARGEST = 63  # nodes of a tree


class Medusa(Proposer):
    """Drafts the Cartesian product of the heads' likeliest tokens, pruned to a static tree.

    Drafts are point masses at every temperature. A node at depth d holds a token of head d - 1,
    whatever its parent is. A prompt of one token has no hidden state yet, so its first step
    drafts nothing.

    Args:
        head: A folder, hub id or `zoo:` name with its `revision`, or loaded heads.
        num_draft_tokens: Nodes of the tree of `typical_paths`; auto takes the fastest.
        paths: Another tree, as a list of paths of ranks or as a JSON file; its size is the number
            of drafts.
        weights: `random` takes only the shape of the named heads.
    """

    kind = DraftKind(trees=True, scored=True)
    hidden_layers = (FINAL_NORM,)

    def __init__(
        self,
        head: str | MedusaHeads | None = None,
        num_draft_tokens: NumDrafts = LARGEST,
        paths: Sequence[Sequence[int]] | str | None = None,
        revision: str | None = None,
        weights: Weights = "trained",
    ) -> None:
        self.num_draft_tokens = number_or(num_draft_tokens, LARGEST)
        self.head, self.revision = head, revision
        self.weights: Weights = weights
        self.paths = read_paths(paths) if isinstance(paths, str) else paths
        if self.paths is not None:
            self.num_draft_tokens = StaticTree.from_paths(self.paths).num_drafts
        elif num_draft_tokens == AUTO:
            self.shapes = (DraftShape(self.num_draft_tokens, "static"),)
        self._is_bound = False
        self._states = KeptStates()  # the last one of each slot

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Medusa":
        """Return a proposer with random heads, and a tree that fits the target's vocabulary."""
        config: Any = target.model.config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            heads = MedusaHeads(config.hidden_size, target.vocab_size, 3)
        return cls(**settings | {"head": heads, "paths": small_paths(target.vocab_size)})

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if not self.head:
            raise ValueError(
                "proposer.head names no Medusa heads; set it to a folder or hub id, "
                "see docs/proposers/medusa.md"
            )
        is_from_file = isinstance(self.head, str)
        if isinstance(self.head, str):
            self.head = MedusaHeads.from_pretrained(
                self.head, revision=self.revision, weights=self.weights
            )
        self.heads, self.target = self.head, target
        self.heads.check_fit(target)
        self.heads.to(device=target.device, dtype=target.dtype).eval()
        if is_from_file:  # heads that were given loaded may go on training
            pack_linear_layers(self.heads, has_packed_layers(target.model))
        self._is_bound = True
        self._set_tree()
        self._states = KeptStates()

    def _set_tree(self) -> None:
        target, paths = self.target, self.paths
        if paths is None:
            num_nodes = LARGEST if self.shapes else self.num_draft_tokens
            paths = typical_paths(len(self.heads), num_nodes)
        self.tree = StaticTree.from_paths(paths, target.device)
        num_tokens = self.heads.vocab_size or target.vocab_size
        if self.tree.depth > len(self.heads) or max(self.tree.widths) > num_tokens:
            raise ValueError(
                f"the tree has {self.tree.depth} levels and rank {max(self.tree.widths) - 1}, "
                f"and there are {len(self.heads)} heads and {num_tokens} tokens; "
                "change proposer.paths"
            )
        if self.chosen is None:
            self.num_draft_tokens = self.tree.num_drafts
        self.kind = replace(self.kind, max_depth=self.tree.depth)
        self._head_of_node = self.tree.topology.depth[0] - 1

    @property
    def shape_now(self) -> DraftShape:
        return DraftShape(self.num_draft_tokens, "static")

    def draft_as(self, shape: DraftShape) -> None:
        super().draft_as(shape)
        self.paths = shape.paths
        if self._is_bound:
            self._set_tree()

    @property
    def models(self) -> tuple[MedusaHeads, ...]:
        return (self.heads,)

    def describe(self) -> str | None:
        if not isinstance(self.head, MedusaHeads):
            return None
        heads = name_of(f"{len(self.head)} Medusa heads", self.weights)
        target = self.head.base_model or "a target that they do not name"
        lm_heads = "LM heads of their own"
        if self.head.vocab_size is None:
            lm_heads = "the target's LM head"
        elif self.head.target_ids is not None:
            lm_heads += f" over {self.head.vocab_size:,} tokens"
        return (
            f"{heads} of {target}; blocks in each: {self.head.num_layers}; "
            f"read the final norm of the target; end in {lm_heads}"
        )

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        slots = [row.slot for row in rows]
        self._states.drop(slots)
        if output is not None:
            self._keep(slots, output, [len(row.tokens) - 2 - row.num_reused for row in rows])

    def num_reusable(self, slot: int, num_tokens: int) -> int:
        return num_tokens

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Keep the hidden state from which the target predicted the next root."""
        ends = zip(verdict.path.tolist(), verdict.num_accepted.tolist(), strict=True)
        nodes = [path[num_accepted] for path, num_accepted in ends]
        self._states.drop(batch.slots)
        self._keep(batch.slots, output, nodes)

    def _keep(self, slots: Sequence[int], output: ModelOutput, nodes: Sequence[int]) -> None:
        """Keep one hidden state of each row, that of `nodes[b]`; -1 means that there is none."""
        self._states.add(slots, output.hidden, [int(node >= 0) for node in nodes], nodes)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        return propose_for(
            batch, budget, lambda row: self._states.count(row.slot) > 0, self._propose
        )

    @torch.inference_mode()
    def _propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        (states,) = self._states.read(batch.slots)
        logits = self.heads(states[:, 0], lm_head_of(self.target)).to(batch.device)
        logits, ids = logits[:, : self.tree.depth], self.heads.target_ids
        vocabulary = DraftVocabulary(
            self.target.vocab_size, None if ids is None else ids.to(batch.device)
        )
        has_penalty = batch.sampling.has_penalty
        if has_penalty:  # they count the target's tokens
            logits = penalize(vocabulary.whole(logits), batch.sampling)
        best = topk(logits, max(self.tree.widths))
        tokens = best.indices if has_penalty else vocabulary.named(best.indices)
        crop = self.tree.crop(budget, batch.room)
        nodes = crop.tree.original_nodes[crop.nodes[:, 1:]]  # [#B, n]
        row = torch.arange(len(batch), device=batch.device)[:, None]
        head, rank = self._head_of_node[nodes], self.tree.ranks[nodes]
        scores = (best.values[row, head, rank] - logits.logsumexp(-1)[row, head]).exp()
        return Proposal(
            token_ids=torch.cat([batch.roots, tokens[row, head, rank]], dim=1),
            topology=crop.topology,
            lengths=upload(crop.lengths, batch.device),
            scores=torch.cat([torch.ones_like(scores[:, :1]), scores], dim=1),
            host_lengths=crop.lengths,
        )

    def finish(self, slots: Sequence[int]) -> None:
        self._states.drop(slots)


def typical_paths(num_heads: int, num_nodes: int) -> list[RankPath]:
    """Return the nodes most likely to be accepted, the likeliest first.

    The token of rank r of head i is assumed to be right with probability
    `TYPICAL_RANK_ACCEPTANCE[r]` * FADE^i, independently of the others.
    """
    acceptance = []
    for i in range(num_heads):
        acceptance.append([rate * FADE**i for rate in TYPICAL_RANK_ACCEPTANCE])
    return [path for path, _ in likeliest_paths(acceptance, num_nodes)]
