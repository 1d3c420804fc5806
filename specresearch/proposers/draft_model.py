"""A small causal LM that shares the target's vocabulary drafts a chain or a tree (Leviathan et al., arXiv 2211.17192)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.pairing import check_pair
from specresearch.proposal import DraftKind, Proposal, Topology, Verdict, upload
from specresearch.proposers.base import Proposer
from specresearch.proposers.shapes import TreeShape
from specresearch.proposers.shares import Share, merge, some
from specresearch.proposers.tree import grow_dynamic, grow_static
from specresearch.sampling import DRAFT_STREAM, argmax, draw, logits_to_probs, penalize

MOST_BEHIND = 16  # tokens, the root included, that `propose` reads itself


class DraftModel(Proposer):
    """Drafts with a draft LM over its own slot cache. A prompt is read when its request first drafts: one that never does costs
    nothing.

    tree, num_draft_tokens, paths, depth, top_k: see `TreeShape`. sample: draw drafts from the draft's distribution (as the
    request's temperature, top-k and top-p shape it) and report it; False drafts its likeliest tokens as point masses.
    Greedy requests, and dynamic trees, always get the likeliest.
    """

    def __init__(
        self,
        draft: CausalLM,
        num_draft_tokens: int | None = None,
        sample: bool = True,
        tree: str = "chain",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
    ) -> None:
        self.draft = draft
        self.shape = TreeShape(tree, num_draft_tokens, paths, depth, top_k)
        self.num_draft_tokens = self.shape.num_draft_tokens
        self.sample = sample
        name = self.shape.name
        self.kind = DraftKind(
            trees=name != "chain", sampled=sample and name != "dynamic", scored=True
        )

    @property
    def compiled(self) -> bool:
        return self.draft.compiled

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self.draft is target:
            raise ValueError(
                "draft and target are one CausalLM and would overwrite each other's cache; load the draft apart"
            )
        check_pair(target, self.draft)
        self.draft.allocate(num_slots, self.shape.max_fed, max_len=target.max_len)
        self.shape.bind(target.vocab_size, self.draft.device)

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        self.finish([row.slot for row in rows])

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        behind = [
            row for row in rows if len(row.tokens) - self.draft.lengths[row.slot] > MOST_BEHIND
        ]
        unseen = [self._unseen(row)[:-1] for row in behind]
        if behind:
            self.draft.extend([row.slot for row in behind], unseen, want_logits=False)
        return sum(map(len, unseen))

    def _unseen(self, row: RequestState) -> list[int]:
        return self._readable(row.tokens[self.draft.lengths[row.slot] :])

    def _readable(self, tokens: list[int]) -> list[int]:
        """Padding ids that only the target's larger embedding has, replaced by some id: it changes q, never the output."""
        last = self.draft.vocab_size - 1
        return [min(token, last) for token in tokens]

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        drafting = [row for row, allowed in enumerate(budget) if allowed > 0]
        if not drafting:
            return Proposal.empty(batch.roots)
        if len(drafting) == len(batch):
            return self._propose(batch, budget)
        proposal = self._propose(some(batch, drafting), [budget[row] for row in drafting])
        return merge(batch, [Share(proposal, drafting, [True] * len(drafting))])

    def _propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        unseen = [self._unseen(row) for row in batch.rows]
        sampled = self.sample and not batch.sampling.all_greedy
        is_chain = self.shape.name == "chain"
        fused = is_chain and self.draft.compiled and self.num_draft_tokens > 1
        if fused and not (sampled or batch.sampling.has_penalty):
            return self._greedy_chain(batch, budget, unseen)
        logits = self._fit(
            self.draft.extend(batch.slots, unseen).logits, batch.vocab_size
        )  # [B, 1, V]
        if is_chain:
            return self._chain(batch, budget, logits, sampled)
        # node 0 of the tree is the root, which stands in the last column that is filled
        self.draft.truncate(batch.slots, [self.draft.lengths[slot] - 1 for slot in batch.slots])
        growth = _Growth(self, batch)
        if self.shape.static is not None:
            return grow_static(growth, batch, logits, self.shape.static, budget, sample=sampled)
        return grow_dynamic(
            growth, batch, logits, budget, depth=self.shape.depth, top_k=self.shape.top_k
        )

    def _chain(
        self, batch: Batch, budget: Sequence[int], logits: Float[Tensor, "B 1 V"], sampled: bool
    ) -> Proposal:
        num_drafts = max(budget)
        uniforms = batch.sampling.uniforms(DRAFT_STREAM, num_drafts) if sampled else None
        tokens, seen, probs = [batch.roots], [], []
        for i in range(num_drafts):
            token, q = self._choose(
                batch, logits, tokens[1:], None if uniforms is None else uniforms[:, i]
            )
            tokens.append(token)
            seen.append(logits)
            probs.append(q)
            if i + 1 < num_drafts:
                logits = self._fit(self.draft.append(batch.slots, token), batch.vocab_size)
        draft_probs = torch.cat([*probs, torch.zeros_like(probs[0])], dim=1) if sampled else None
        return _scored_chain(torch.cat(tokens, dim=1), budget, torch.cat(seen, dim=1), draft_probs)

    def _greedy_chain(
        self, batch: Batch, budget: Sequence[int], unseen: Sequence[Sequence[int]]
    ) -> Proposal:
        """All drafts from one graph, whose number of steps never changes, so that it is compiled once; `observe` forgets the
        surplus."""
        num_drafts, num_choices = max(budget), min(batch.vocab_size, self.draft.vocab_size)
        tokens, seen = self.draft.draft_greedily(
            batch.slots, unseen, self.num_draft_tokens, num_choices
        )
        token_ids = torch.cat([batch.roots, tokens], dim=1)[:, : num_drafts + 1]
        return _scored_chain(token_ids, budget, self._fit(seen, batch.vocab_size)[:, :num_drafts])

    def _fit(self, logits: Float[Tensor, "B M _"], vocab_size: int) -> Float[Tensor, "B M V"]:
        """Without the rows of padding of the draft's embedding matrix, with those of the target's."""
        surplus = logits.shape[-1] - vocab_size
        return (
            logits[..., :vocab_size]
            if surplus >= 0
            else F.pad(logits, (0, -surplus), value=float("-inf"))
        )

    def _choose(
        self,
        batch: Batch,
        logits: Float[Tensor, "B 1 V"],
        drafts: Sequence[Int[Tensor, "B 1"]],
        uniforms: Float[Tensor, " B"] | None,
    ) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B 1 V"]]:
        """The next draft of each row, and the distribution it was drawn from."""
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
        """Keep the draft's keys and values of what was accepted; the last draft of a full run was never fed back."""
        committed = [len(row.tokens) - 1 for row in batch.rows]
        known = [self.draft.lengths[slot] for slot in batch.slots]
        self.draft.truncate(batch.slots, [min(c, k) for c, k in zip(committed, known, strict=True)])

    def finish(self, slots: Sequence[int]) -> None:
        self.draft.truncate(slots, [0] * len(slots))

    def scrub(self, slots: Sequence[int]) -> None:
        self.draft.cache.scrub(slots)


def _scored_chain(
    token_ids: Int[Tensor, "B N"],
    budget: Sequence[int],
    logits: Float[Tensor, "B M V"],
    draft_probs: Float[Tensor, "B N V"] | None = None,
) -> Proposal:
    """A chain whose scores are the draft's own probability of every node, given the one before."""
    own = logits.gather(2, token_ids[:, 1:, None])[:, :, 0] - logits.logsumexp(-1)
    lengths = tuple(allowed + 1 for allowed in budget)
    return Proposal(
        token_ids,
        Topology.chain(token_ids.shape[1], token_ids.device),
        upload(lengths, token_ids.device),
        draft_probs,
        scores=F.pad(own.exp(), (1, 0), value=1.0),
        host_lengths=lengths,
    )


@dataclass(frozen=True)
class _Growth:
    """A draft LM as the thing a tree grows from."""

    proposer: DraftModel
    batch: Batch

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        draft = self.proposer.draft
        readable = token_ids.clamp(max=draft.vocab_size - 1)
        return self.proposer._fit(
            draft.grow(self.batch.slots, readable, topology, first), self.batch.vocab_size
        )
