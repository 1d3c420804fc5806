"""A proposer that drafts what a recording says would have been drafted."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM
from specresearch.proposal import DraftKind, Proposal, Topology, upload
from specresearch.proposers import DraftModel, Proposer
from specresearch.proposers.kept_columns import KeptColumns
from specresearch.request import RequestState
from specresearch.simulation.acceptance import Drafted
from specresearch.simulation.machine import Machine
from specresearch.simulation.models import END, TOKEN, SimulatedModel
from specresearch.simulation.replays import output_of, request_of


@dataclass(frozen=True, kw_only=True)
class ReplayedProposal(Proposal):
    """Drafts of which it is known how many are accepted.

    The first nodes are the path that is tried; in a tree the others hang below the root, since a
    recording does not say where they were.

    Attributes:
        num_accepted: Drafts that are accepted unless the proposal is cut before them.
        num_left: Tokens that are left of each output.
        expected: The probability that each draft of the chain is accepted; None if it is unknown.
    """

    num_accepted: tuple[int, ...]
    num_left: tuple[int, ...]
    expected: Float[Tensor, "B _"] | None


class ReplayingProposer(Proposer):
    """Drafts what the recordings of the requests say.

    Args:
        score_reader: Name of the controller, if it needs the scores of drafts.
    """

    def __init__(
        self,
        machine: Machine,
        kind: DraftKind,
        num_draft_tokens: int,
        score_reader: str | None = None,
    ) -> None:
        self.machine = machine
        self.kind = kind
        self.num_draft_tokens = num_draft_tokens
        self.score_reader = score_reader

    def propose(self, batch: Batch, budget: Sequence[int]) -> ReplayedProposal:
        drafts: list[Drafted] = []
        num_left: list[int] = []
        for row, allowed in zip(batch.rows, budget, strict=True):
            request, position = request_of(row), row.num_generated
            drafts.append(request.output.draft(position, allowed))
            num_left.append(request.num_tokens - position)
        self._spend(batch, budget, drafts)
        lengths = tuple([draft.num + 1 for draft in drafts])
        width = max(lengths)
        token_ids = torch.full((len(drafts), width), TOKEN)
        for b, draft in enumerate(drafts):
            if draft.accepted >= num_left[b]:
                token_ids[b, num_left[b]] = END
        return ReplayedProposal(
            token_ids=token_ids,
            topology=_topology(drafts, width),
            lengths=upload(lengths, batch.device),
            scores=self._scores(batch.rows, lengths, width) if self.score_reader else None,
            host_lengths=lengths,
            num_accepted=tuple([draft.accepted for draft in drafts]),
            num_left=tuple(num_left),
            expected=_expected(batch.rows, lengths, width),
        )

    def _spend(self, batch: Batch, budget: Sequence[int], drafts: Sequence[Drafted]) -> None:
        """Spend the time of drafting, if drafts were asked for."""
        if not any(budget):
            return
        contexts = [len(row.tokens) - 1 for row in batch.rows]
        num_drafts = sum(draft.num for draft in drafts)
        self.machine.propose(contexts, num_drafts, max(draft.depth for draft in drafts))

    def _scores(
        self, rows: Sequence[RequestState], lengths: Sequence[int], width: int
    ) -> Float[Tensor, "B N"]:
        """Return the drafter's own probability of each draft, as recorded."""
        scores = []
        for row, length in zip(rows, lengths, strict=True):
            output = output_of(row)
            known = output.estimates.scores
            if length > 1 and not known:
                raise ValueError(
                    f"controller {self.score_reader} reads the drafter's scores, and the recording "
                    "has none for drafts that begin elsewhere; measure it with specresearch.load, "
                    "or use another controller"
                )
            root_and_drafts = [1.0, *output.at(known, row.num_generated, length - 1)]
            scores.append(_padded(root_and_drafts, width))
        return upload(scores, "cpu", torch.float32)


class ReplayingDraftModel(ReplayingProposer, DraftModel):
    """A drafter that drafts what the recordings say, and prefills as the real one does."""

    def __init__(
        self, machine: Machine, kind: DraftKind, num_draft_tokens: int, score_reader: str | None
    ) -> None:
        super().__init__(machine, kind, num_draft_tokens, score_reader)
        self.draft = SimulatedModel(machine.lazy_prefill)

    def bind(self, target: CausalLM, num_slots: int) -> None:
        self.draft.allocate(num_slots)
        self._columns = KeptColumns(self.draft)

    def propose(self, batch: Batch, budget: Sequence[int]) -> ReplayedProposal:
        proposal = super().propose(batch, budget)
        # A chain's last draft is never fed back; of a tree the draft's cache keeps no draft at all.
        num_cached_drafts = 0 if self.kind.trees else max(budget) - 1
        for row, allowed in zip(batch.rows, budget, strict=True):
            if allowed > 0:
                self.draft.lengths[row.slot] = len(row.tokens) + num_cached_drafts
        return proposal


def _topology(drafts: Sequence[Drafted], width: int) -> Topology:
    """Return each row's path, with the nodes beside it below the root."""
    if all(draft.num == draft.depth for draft in drafts):
        return Topology.chain(width)
    parents = []
    for draft in drafts:
        path = range(-1, draft.depth)
        parents.append([*path] + [0] * (width - len(path)))
    depths = [draft.depth for draft in drafts]
    max_children = max(width - max(depth, 1) for depth in depths)
    return Topology(
        torch.tensor(parents), is_chain=False, max_depth=max(depths), max_children=max_children
    )


def _expected(
    rows: Sequence[RequestState], lengths: Sequence[int], width: int
) -> Float[Tensor, "B _"] | None:
    """Return the recorded probability that each draft is accepted, or None if a row has none."""
    if not all(output_of(row).estimates.expected for row in rows):
        return None
    expected = []
    for row, length in zip(rows, lengths, strict=True):
        output = output_of(row)
        of_drafts = output.at(output.estimates.expected, row.num_generated, length - 1)
        expected.append(_padded(of_drafts, width - 1))
    return upload(expected, "cpu", torch.float64)


def _padded(values: list[float], width: int) -> list[float]:
    return values + [0.0] * (width - len(values))
