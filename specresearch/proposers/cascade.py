"""Several proposers in turn: each row takes its drafts from the first one that has any for it."""

from collections.abc import Sequence

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers.base import Proposer
from specresearch.proposers.shares import Share, merge, some


class Cascade(Proposer):
    """Asks `proposers` in order, each for the rows that those before it had nothing to say about; all of them learn.

    A proposer sees only the rows it drafts for, so that what it keeps for the others stays that of committed tokens.
    Raises ValueError for a deterministic tree beside sampled drafts: one proposal has draft probabilities for all rows or
    for none, and they cannot express siblings that were not drawn; and for a proposer with probe nodes of its own.
    """

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        if len(proposers) < 2:
            raise ValueError(
                f"a cascade of {len(proposers)} proposers has no order; name at least two"
            )
        self.proposers = tuple(proposers)
        names = [type(part).__name__ for part in proposers]
        for part, name in zip(proposers, names, strict=True):
            if part.max_nodes > part.num_draft_tokens + 1:
                raise ValueError(
                    f"{name} verifies nodes of its own beside its drafts, which a cascade has no place for; use it alone"
                )
        kinds = [part.kind for part in proposers]
        sampled = [name for name, kind in zip(names, kinds, strict=True) if kind.sampled]
        fixed = [
            name for name, kind in zip(names, kinds, strict=True) if kind.trees and not kind.sampled
        ]
        if sampled and fixed:
            raise ValueError(
                f"{fixed[0]} drafts trees that are not sampled, {sampled[0]} samples: no draft probabilities fit both; "
                f"let {fixed[0]} draft chains, or {sampled[0]} its likeliest tokens (sample=false)"
            )
        self.kind = DraftKind(
            trees=any(kind.trees for kind in kinds),
            sampled=len(sampled) == len(kinds),
            scored=all(kind.scored for kind in kinds),
        )
        self.num_draft_tokens = max(part.num_draft_tokens for part in proposers)
        self._join_layers()

    def _join_layers(self) -> None:
        self.hidden_layers = tuple(
            dict.fromkeys(layer for part in self.proposers for layer in part.hidden_layers)
        )

    def bind(self, target: CausalLM, num_slots: int) -> None:
        for part in self.proposers:
            part.bind(target, num_slots)
        self._join_layers()

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        for part in self.proposers:
            part.start(rows, None if output is None else self._output_for(part, output))

    def _output_for(self, part: Proposer, output: ModelOutput) -> ModelOutput:
        """With the hidden states that this proposer asked for."""
        return ModelOutput(
            output.logits,
            tuple(output.hidden[self.hidden_layers.index(layer)] for layer in part.hidden_layers),
        )

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """The first one's: the others read when they are asked."""
        return self.proposers[0].lazy_prefill(rows)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        shares: list[Share] = []
        waiting = [row for row, allowed in enumerate(budget) if allowed > 0]
        for part in self.proposers:
            if not waiting:
                break
            asked = some(batch, waiting)
            room = [part.num_draft_tokens if part.kind.trees else most for most in asked.room]
            limits = [
                min(budget[row], part.num_draft_tokens, most)
                for row, most in zip(waiting, room, strict=True)
            ]
            proposal = part.propose(asked, limits)
            is_last = part is self.proposers[-1]
            spoke = (
                [True] * len(waiting) if is_last else [length > 1 for length in _lengths(proposal)]
            )
            share = Share(proposal, waiting, spoke)
            if len(share.rows) == len(batch):
                return proposal
            shares.append(share)
            waiting = [
                row for row, has_drafts in zip(waiting, spoke, strict=True) if not has_drafts
            ]
        return merge(batch, [share for share in shares if share.rows])

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        for part in self.proposers:
            part.observe(batch, proposal, self._output_for(part, output), verdict)

    def finish(self, slots: Sequence[int]) -> None:
        for part in self.proposers:
            part.finish(slots)

    def reset(self) -> None:
        for part in self.proposers:
            part.reset()


def _lengths(proposal: Proposal) -> Sequence[int]:
    return (
        proposal.lengths.tolist() if proposal.host_lengths is None else proposal.host_lengths
    )  # sync
