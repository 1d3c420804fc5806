"""A small causal LM that shares the target's vocabulary drafts a chain (Leviathan et al., arXiv 2211.17192)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.pairing import check_pair
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.sampling import DRAFT_STREAM, argmax, draw, logits_to_probs, penalize


class DraftModel(Proposer):
    """Drafts with a draft LM over its own slot cache.

    sample: draw drafts from the draft's distribution (as the request's temperature, top-k and top-p shape it) and report it;
    False drafts its likeliest tokens as point masses. Greedy requests always get the likeliest.
    """

    def __init__(self, draft: CausalLM, num_draft_tokens: int = 5, sample: bool = True) -> None:
        self.draft = draft
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        self.sample = sample

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.draft is target:
            raise ValueError(
                "draft and target are one CausalLM and would overwrite each other's cache; load the draft apart"
            )
        check_pair(target, self.draft)
        self.draft.max_len = target.max_len
        self.draft.allocate(num_slots, self.num_draft_tokens)

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        slots, prompts = [row.slot for row in rows], [self._readable(row.tokens[:-1]) for row in rows]
        self.draft.truncate(slots, [0] * len(rows))
        if any(prompts):
            self.draft.extend(slots, prompts, want_logits=False)

    def _readable(self, tokens: list[int]) -> list[int]:
        """Padding ids that only the target's larger embedding has, replaced by some id: it changes q, never the output."""
        last = self.draft.vocab_size - 1
        return [min(token, last) for token in tokens]

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        num_drafts = max(budget)
        if num_drafts == 0:
            return Proposal.chain(batch.roots, torch.ones(len(batch), dtype=torch.long, device=batch.device))
        unseen = [self._readable(row.tokens[self.draft.lengths[row.slot] :]) for row in batch.rows]
        logits = self.draft.extend(batch.slots, unseen).logits  # [B, 1, V]
        sampled = self.sample and not batch.sampling.all_greedy
        uniforms = batch.sampling.uniforms(DRAFT_STREAM, num_drafts) if sampled else None
        tokens, probs = [batch.roots], []
        for i in range(num_drafts):
            token, q = self._choose(batch, logits, tokens[1:], None if uniforms is None else uniforms[:, i])
            tokens.append(token)
            probs.append(q)
            if i + 1 < num_drafts:
                logits = self.draft.append(batch.slots, token)
        lengths = upload(budget, batch.device) + 1
        draft_probs = torch.cat([*probs, torch.zeros_like(probs[0])], dim=1) if sampled else None
        return Proposal.chain(torch.cat(tokens, dim=1), lengths, draft_probs)

    def _choose(
        self,
        batch: Batch,
        logits: Float[Tensor, "B 1 _"],
        drafts: Sequence[Int[Tensor, "B 1"]],
        uniforms: Float[Tensor, " B"] | None,
    ) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B 1 V"]]:
        """The next draft of each row, and the distribution it was drawn from."""
        surplus = logits.shape[-1] - batch.vocab_size  # rows of padding in either embedding matrix
        logits = logits[..., : batch.vocab_size] if surplus >= 0 else F.pad(logits, (0, -surplus), value=float("-inf"))
        path = on_path = None
        if drafts and batch.sampling.has_penalty:
            path = torch.cat(list(drafts), dim=1)
            on_path = torch.ones((1, 1, path.shape[1]), dtype=torch.bool, device=path.device)
        if uniforms is None:
            return argmax(penalize(logits, batch.sampling, path, on_path)), logits
        q = logits_to_probs(logits, batch.sampling, path, on_path)
        return draw(q[:, 0], uniforms)[:, None], q

    def observe(self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict) -> None:
        """Keep the draft's keys and values of what was accepted; the last draft of a full run was never fed back."""
        committed = [len(row.tokens) - 1 for row in batch.rows]
        known = [self.draft.lengths[slot] for slot in batch.slots]
        self.draft.truncate(batch.slots, [min(c, k) for c, k in zip(committed, known, strict=True)])

    def finish(self, slots: Sequence[int]) -> None:
        self.draft.truncate(slots, [0] * len(slots))
