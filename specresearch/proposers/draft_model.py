"""A small causal LM with the target's vocabulary drafts a chain or a tree.

Leviathan et al. (arXiv 2211.17192).
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.drawing import draw
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.chain_graph import ChainChoice, draft_chain
from specresearch.models.graphs import GraphInput
from specresearch.models.pairing import check_pair
from specresearch.models.target_copy import TargetCopy
from specresearch.models.translation import Translation
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers.draft_shape import NumDrafts
from specresearch.proposers.growth_graph import GrowthGraph
from specresearch.proposers.kept_columns import KeptColumns
from specresearch.proposers.lazy_prefill import MOST_BEHIND, next_chunks
from specresearch.proposers.lm_expander import LMExpander, LMExpanderInGraph
from specresearch.proposers.partial import propose_for
from specresearch.proposers.scored_chain import chance_of, scored_chain
from specresearch.proposers.tree import grow_dynamic, grow_static
from specresearch.proposers.tree_proposer import TreeProposer
from specresearch.request import RequestState
from specresearch.sampling import DRAFT_STREAM, argmax, logits_to_probs, penalize


class DraftModel(TreeProposer):
    """Drafts with a draft LM over its own slot cache.

    Draft prefill is lazy: it runs on a request's first draft.

    Args:
        draft: A `TargetCopy` becomes a draft model when a target is there.
        num_draft_tokens: As in `TreeProposer`, like `tree`, `paths`, `depth` and `top_k`.
        sample: Draw drafts from the draft's distribution (as the request's temperature, top-k and
            top-p shape it) and report it. False drafts its likeliest tokens as point masses, as
            greedy requests and dynamic trees always do.

    Attributes:
        draft: The draft model; a copy of the target exists after `bind`.
        translation: Between the ids of draft and target; None if they share their vocabulary.
    """

    samples_trees = True
    draft: CausalLM
    _copy: TargetCopy | None = None
    translation: Translation | None = None

    def __init__(
        self,
        draft: CausalLM | TargetCopy,
        num_draft_tokens: NumDrafts | None = None,
        sample: bool = True,
        tree: str = "chain",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
    ) -> None:
        if isinstance(draft, TargetCopy):
            self._copy = draft
        else:
            self.draft = draft
        super().__init__(tree, num_draft_tokens, paths, depth, top_k, sample=sample)

    @property
    def compiled(self) -> bool:
        return self.draft.compiled

    @property
    def models(self) -> tuple[CausalLM, ...]:
        return (self.draft,)

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self._copy is not None:
            self.draft = self._copy.of(target)
        check_pair(target, self.draft)
        self.allocate(target, num_slots)

    def allocate(self, target: CausalLM, num_slots: int) -> None:
        """Make room for the keys and values of so many requests of the target."""
        self.draft.allocate(num_slots, self.max_fed, max_len=target.max_len)
        self._columns = KeptColumns(self.draft)
        self.bind_shape(target.vocab_size, self.draft.device)

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        self._columns.enter(rows)

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        self._columns.reuse(slot, source, num_tokens)

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """Prefill at most one chunk of all prompts together, the first rows first."""
        slots, chunks = next_chunks(rows, self._pending, self.draft.prefill_chunk)
        if slots:
            self.draft.extend(slots, chunks, want_logits=False)
        return sum(map(len, chunks))

    def is_behind(self, row: RequestState) -> bool:
        return len(self._pending(row)) > MOST_BEHIND

    def _pending(self, row: RequestState) -> list[int]:
        """Return the ids that the draft's cache does not hold yet; none if it has no room for them.

        Padding ids that only the target's larger embedding has become some other id: this changes
        q, never the output.
        """
        last = self.draft.vocab_size - 1
        return [min(token, last) for token in row.tokens[self.draft.lengths[row.slot] :]]

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        return propose_for(batch, budget, lambda row: bool(self._pending(row)), self._propose)

    def _propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        pending = [self._pending(row) for row in batch.rows]
        sampled = self.sample and not batch.sampling.all_greedy
        is_chain = self.shape.name == "chain"
        fused = is_chain and self.draft.compiled and self.num_draft_tokens > 1
        is_plain = self.translation is None and not (sampled or batch.sampling.has_penalty)
        if fused and is_plain:
            return self._greedy_chain(batch, budget, pending)
        if is_chain and not batch.sampling.has_penalty:
            proposal = self._chain_by_graph(batch, budget, pending, sampled)
            if proposal is not None:
                return proposal
        output = self.draft.extend(batch.slots, pending)
        logits = self.to_target(output.logits, batch.vocab_size)  # [B, 1, V]
        if is_chain:
            return self._chain(batch, budget, logits, sampled)
        # node 0 of the tree is the root, which is in the last filled column of the cache
        self.draft.truncate(batch.slots, [self.draft.lengths[slot] - 1 for slot in batch.slots])
        drafter = LMExpander(self, batch)
        graph = GrowthGraph.of(
            self.draft,
            batch.slots,
            partial(LMExpanderInGraph, self, batch.vocab_size),
            [],
            max_fed=self.max_fed,
            vocabulary=self.translation,
        )
        if self.shape.static is not None:
            return grow_static(
                drafter,
                batch,
                logits,
                self.shape.static,
                budget,
                sample=sampled,
                graph=graph,
            )
        return grow_dynamic(
            drafter,
            batch,
            logits,
            budget,
            depth=self.shape.depth,
            top_k=self.shape.top_k,
            graph=graph,
        )

    def _chain(
        self, batch: Batch, budget: Sequence[int], logits: Float[Tensor, "B 1 V"], sampled: bool
    ) -> Proposal:
        num_drafts = max(budget)
        uniforms: Sequence[Tensor | None] = [None] * num_drafts
        if sampled:
            uniforms = batch.sampling.uniforms(DRAFT_STREAM, num_drafts).unbind(1)
        tokens, all_logits, probs = [batch.roots], [], []
        for i in range(num_drafts):
            token, q = self._choose(batch, logits, tokens[1:], uniforms[i])
            tokens.append(token)
            all_logits.append(logits)
            probs.append(q)
            if i + 1 < num_drafts:
                logits = self.draft.append(batch.slots, self.to_draft(token))
                logits = self.to_target(logits, batch.vocab_size)
        draft_probs = torch.cat([*probs, torch.zeros_like(probs[0])], dim=1) if sampled else None
        token_ids = torch.cat(tokens, dim=1)
        scores = chance_of(torch.cat(all_logits, dim=1), token_ids[:, 1:])
        return scored_chain(token_ids, budget, scores, draft_probs)

    def _chain_by_graph(
        self,
        batch: Batch,
        budget: Sequence[int],
        pending: Sequence[Sequence[int]],
        sampled: bool,
    ) -> Proposal | None:
        """Draft all tokens as one graph; return None if there is none for them."""
        sampling, vocab_size, num_drafts = batch.sampling, batch.vocab_size, max(budget)

        def given(num_rows: int) -> list[GraphInput]:
            if not sampled:
                return []
            columns, uniforms = sampling.columns, sampling.uniforms(DRAFT_STREAM, num_drafts)
            return [
                GraphInput.padded(columns, (len(columns), num_rows), fill=1),
                GraphInput.padded(uniforms, (num_rows,)),
            ]

        def choose(i: int, logits: Float[Tensor, "B 1 V"], *given: Tensor) -> tuple[Tensor, ...]:
            logits = self.to_target(logits, vocab_size)
            if not sampled:
                token = argmax(logits)
                return token, chance_of(logits, token)
            q = logits_to_probs(logits, sampling.given(*given))
            token = draw(q[:, 0], given[1][:, i])[:, None]
            return token, chance_of(logits, token), q

        kind = ("chain", vocab_size, sampling.kind if sampled else None, self.translation)
        choice = ChainChoice(kind, choose, given, self.to_draft)
        drafted = draft_chain(self.draft, batch.slots, pending, num_drafts, choice)
        if drafted is None:
            return None
        tokens, scores, *probs = drafted
        draft_probs = F.pad(probs[0], (0, 0, 0, 1)) if probs else None
        token_ids = torch.cat([batch.roots, tokens], dim=1)
        return scored_chain(token_ids, budget, scores, draft_probs)

    def _greedy_chain(
        self, batch: Batch, budget: Sequence[int], pending: Sequence[Sequence[int]]
    ) -> Proposal:
        """Draft all tokens in one compiled graph; `observe` drops the surplus.

        The number of steps never changes, so that the graph is compiled once.
        """
        num_drafts = max(budget)
        num_choices = min(batch.vocab_size, self.draft.vocab_size)
        tokens, logits = self.draft.draft_greedily(
            batch.slots, pending, self.num_draft_tokens, num_choices
        )
        token_ids = torch.cat([batch.roots, tokens], dim=1)[:, : num_drafts + 1]
        logits = self.to_target(logits, batch.vocab_size)[:, :num_drafts]
        return scored_chain(token_ids, budget, chance_of(logits, token_ids[:, 1:]))

    def to_target(self, logits: Float[Tensor, "B M _"], vocab_size: int) -> Float[Tensor, "B M V"]:
        """Return the draft's logits as those of the target's ids.

        With a shared vocabulary, the draft's padding ids are dropped, or those of the target added
        with probability 0.
        """
        if self.translation is not None:
            return self.translation.to_target(logits)
        surplus = logits.shape[-1] - vocab_size
        if surplus >= 0:
            return logits[..., :vocab_size]
        return F.pad(logits, (0, -surplus), value=float("-inf"))

    def to_draft(self, token_ids: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]:
        """Return the draft's ids of drafts; it may lack padding ids of the target."""
        if self.translation is not None:
            return self.translation.to_draft(token_ids)
        return token_ids.clamp(max=self.draft.vocab_size - 1)

    def _choose(
        self,
        batch: Batch,
        logits: Float[Tensor, "B 1 V"],
        drafts: Sequence[Int[Tensor, "B 1"]],
        uniforms: Float[Tensor, " B"] | None,
    ) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B 1 V"]]:
        """Return the next draft of each row, and the distribution it was drawn from."""
        path = on_path = None
        if drafts and batch.sampling.has_penalty:
            path = torch.cat(list(drafts), dim=1)
            on_path = torch.ones((1, 1, path.shape[1]), dtype=torch.bool, device=path.device)
        if uniforms is None:
            return argmax(penalize(logits, batch.sampling, path, on_path)), logits
        q = logits_to_probs(logits, batch.sampling, path, on_path)
        return draw(q[:, 0], uniforms)[:, None], q

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        """Keep the draft's keys and values of the accepted drafts.

        If all were accepted, the last one was never fed.
        """
        lengths = self.draft.lengths
        committed = [min(len(row.tokens) - 1, lengths[row.slot]) for row in batch.rows]
        self.draft.truncate(batch.slots, committed)

    def finish(self, slots: Sequence[int]) -> None:
        self._columns.leave(slots)

    def scrub(self, slots: Sequence[int]) -> None:
        self.draft.cache.scrub(slots)
