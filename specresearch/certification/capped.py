"""Controllers that limit how much a trial drafts."""

from dataclasses import dataclass

from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind, Proposal

PAUSE = 3  # steps without drafts
# the scheduler makes room for what was asked for in two consecutive steps; a method that learns
# from its own probes needs two more
DRAFTING = 4


@dataclass
class Capped(Controller):
    """Cuts another controller's budgets to `limit` drafts; None leaves them unchanged."""

    controller: Controller
    limit: int | None

    @property
    def per_request(self) -> bool:
        return self.controller.per_request

    def budget(self, batch: Batch) -> list[int | None]:
        return [self._cut(drafts) for drafts in self.controller.budget(batch)]

    def _cut(self, drafts: int | None) -> int | None:
        if self.limit is None:
            return drafts
        return self.limit if drafts is None else min(drafts, self.limit)

    def max_depth(self, batch: Batch) -> int | None:
        return self.controller.max_depth(batch)

    def max_width(self, batch: Batch) -> int | None:
        return self.controller.max_width(batch)

    def observe(self, record: StepRecord) -> None:
        self.controller.observe(record)

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        limit = num_draft_tokens if self.limit is None else self.limit
        self.controller.bind(kind, min(num_draft_tokens, limit))

    def foresee(self, forecast: DraftForecast) -> None:
        self.controller.foresee(forecast)

    def trim(self, proposal: Proposal) -> Proposal:
        return self.controller.trim(proposal)

    def reset(self) -> None:
        self.controller.reset()


class Paused(Capped):
    """Drafts nothing for `PAUSE` steps after every `DRAFTING` steps.

    Meanwhile the cache fills with requests, and some are preempted when drafting resumes.
    """

    num_steps = 0

    @property
    def per_request(self) -> bool:
        return False

    def budget(self, batch: Batch) -> list[int | None]:
        budget = super().budget(batch)
        is_paused = self.num_steps % (DRAFTING + PAUSE) >= DRAFTING
        self.num_steps += 1
        return [0] * len(budget) if is_paused else budget
