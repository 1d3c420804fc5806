"""A request whose drafts are mostly rejected stops drafting, and tries again now and then."""

from collections import deque
from dataclasses import dataclass, field

from specresearch.batch import Batch
from specresearch.controllers.base import check, check_num_draft_tokens
from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.trace import TracedController
from specresearch.metrics import StepRecord


@dataclass
class _Gate:
    """Whether a request drafts.

    Attributes:
        recent: Accepted drafts and depth of the draft in each of the last steps that drafted.
        num_idle: Steps since the last draft.
    """

    recent: deque[tuple[int, int]] = field(default_factory=deque)
    is_open: bool = True
    num_idle: int = 0

    @property
    def rate(self) -> float:
        num_accepted, depth = map(sum, zip(*self.recent, strict=True))
        return num_accepted / depth


class AcceptanceGate(TracedController):
    """Stops drafting per request below an acceptance rate, and probes whether to resume.

    Args:
        min_acceptance: Accepted / drafted tokens, in a tree along its longest path, below which a
            request stops drafting.
        window: Steps with drafts over which the rate is taken; before that the request drafts.
        probe_every: Steps after which a request that stopped drafts once; it resumes if that one
            draft reaches the rate.
        num_draft_tokens: Drafts of a step; None leaves the number to the proposer.
    """

    per_request = True

    def __init__(
        self,
        min_acceptance: float = 0.5,
        window: int = 16,
        probe_every: int = 32,
        num_draft_tokens: int | None = None,
        trace_every: int = 100,
    ) -> None:
        if not 0 <= min_acceptance <= 1:
            raise ValueError(
                f"controller.min_acceptance={min_acceptance} is a rate and must lie in [0, 1]"
            )
        for name, value in (("window", window), ("probe_every", probe_every)):
            check(name, value, value >= 1, "at least 1 step")
        super().__init__(trace_every)
        self.min_acceptance = min_acceptance
        self.window = window
        self.probe_every = probe_every
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        self._gates = PerRequest(_Gate)

    def budget(self, batch: Batch) -> list[int | None]:
        budget = []
        for gate in self._gates.select(batch.rows):
            drafts = gate.is_open or gate.num_idle >= self.probe_every
            budget.append(self.num_draft_tokens if drafts else 0)
        return budget

    def observe(self, record: StepRecord) -> None:
        gates = self._gates.selected
        rows = zip(gates, record.num_accepted_tokens, record.draft_depth, strict=True)
        for gate, num_accepted, depth in rows:
            if depth:
                self._update(gate, num_accepted, depth)
            else:
                gate.num_idle += 1
        self._trace.add(num_requests=len(gates), num_shut=sum(not gate.is_open for gate in gates))

    def _update(self, gate: _Gate, num_accepted: int, depth: int) -> None:
        gate.num_idle = 0
        gate.recent.append((num_accepted, depth))
        if len(gate.recent) > self.window:
            gate.recent.popleft()
        if not gate.is_open or len(gate.recent) == self.window:
            gate.is_open = gate.rate >= self.min_acceptance
        if not gate.is_open:
            gate.recent.clear()

    def reset(self) -> None:
        super().reset()
        self._gates.clear()
