"""Who drafts for a certificate, with how much, and what a rule refuses to judge."""

from dataclasses import dataclass

import torch

from specresearch.acceptance import AcceptanceSampler
from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingBatch, SamplingParams

PAUSE = 3  # steps; the scheduler makes room for what was asked for in two steps running


@dataclass
class Capped(Controller):
    """A controller's budgets, cut to `most` drafts; None leaves them as they are."""

    controller: Controller
    most: int | None

    @property
    def per_request(self) -> bool:
        return self.controller.per_request

    def budget(self, batch: Batch) -> list[int | None]:
        budget = self.controller.budget(batch)
        if self.most is None:
            return budget
        return [self.most if drafts is None else min(drafts, self.most) for drafts in budget]

    def observe(self, record: StepRecord) -> None:
        self.controller.observe(record)

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        most = num_draft_tokens if self.most is None else min(num_draft_tokens, self.most)
        self.controller.bind(kind, most)

    def trim(self, proposal: Proposal) -> Proposal:
        return self.controller.trim(proposal)

    def reset(self) -> None:
        self.controller.reset()


class Paused(Capped):
    """Capped budgets, and none at all in every other stretch of `PAUSE` steps.

    While nothing is drafted, the cache fills with requests; when drafts come back, some of these have to be preempted.
    """

    num_steps = 0

    @property
    def per_request(self) -> bool:
        return False

    def budget(self, batch: Batch) -> list[int | None]:
        budget = super().budget(batch)
        self.num_steps += 1
        return [0] * len(budget) if self.num_steps // PAUSE % 2 else budget


@dataclass(frozen=True)
class Drafter:
    """Someone whose drafts the rule is tried with, and the settings, sampled and greedy, in which it can judge them.

    stress: it is one of the adversaries.
    """

    name: str
    proposer: Proposer
    sampled: tuple[str, ...]
    greedy: tuple[str, ...]
    stress: bool = False


def refusal(
    rule: AcceptanceSampler, kind: DraftKind, sampling: SamplingParams, vocab_size: int
) -> str | None:
    """Why the rule refuses such drafts under such a setting, found by showing it one; None when it does not."""
    no_counts = torch.zeros((1, vocab_size), dtype=torch.long)
    flat = torch.full((1, 2, vocab_size), 1 / vocab_size, dtype=torch.float64)
    proposal = Proposal(
        torch.zeros((1, 2), dtype=torch.long),
        Topology.chain(2),
        torch.tensor([2]),
        flat if kind.sampled and not sampling.is_greedy else None,
        scores=flat[:, :, 0] if kind.scored else None,
    )
    try:
        rule(
            proposal,
            flat.log(),
            SamplingBatch([sampling], [0], [0], torch.device("cpu"), no_counts, no_counts),
        )
    except ValueError as error:
        return str(error)
    return None
