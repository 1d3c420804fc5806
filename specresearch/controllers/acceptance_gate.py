"""A request whose drafts are mostly refused stops drafting, and tries again now and then."""

from collections import deque
from dataclasses import dataclass, field

from specresearch.batch import Batch
from specresearch.controllers.base import Controller, check_num_draft_tokens
from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.trace import Trace
from specresearch.metrics import StepRecord


@dataclass
class _Gate:
    """recent: (accepted, longest path drafted) of the last steps that drafted. num_idle: steps since then, while shut."""

    recent: deque[tuple[int, int]] = field(default_factory=deque)
    is_open: bool = True
    num_idle: int = 0

    @property
    def rate(self) -> float:
        return sum(accepted for accepted, _ in self.recent) / sum(depth for _, depth in self.recent)


class AcceptanceGate(Controller):
    """Per request: off below an acceptance rate over a window of steps, with probes that can turn it on again.

    min_acceptance: accepted / drafted tokens (in a tree, along its longest path) below which drafting stops.
    window: steps with drafts that the rate is taken over; nothing is decided before it is full.
    probe_every: a request that stopped drafts once in so many steps; if that one draft reaches the rate, it is on again.
    num_draft_tokens: drafts while on; None leaves the number to the proposer's own setting.
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
            if value < 1:
                raise ValueError(f"controller.{name}={value} must be at least 1 step")
        self.min_acceptance, self.window, self.probe_every = min_acceptance, window, probe_every
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        self._gates = PerRequest(_Gate)
        self._trace = Trace(trace_every)

    def budget(self, batch: Batch) -> list[int | None]:
        gates = self._gates.meet(batch.rows)
        return [
            self.num_draft_tokens if gate.is_open or gate.num_idle >= self.probe_every else 0
            for gate in gates
        ]

    def observe(self, record: StepRecord) -> None:
        gates = self._gates.met
        for gate, accepted, depth in zip(
            gates, record.num_accepted_tokens, record.draft_depth, strict=True
        ):
            if depth:
                self._learn(gate, accepted, depth)
            else:
                gate.num_idle += 1
        self._trace.add(num_requests=len(gates), num_shut=sum(not gate.is_open for gate in gates))

    def _learn(self, gate: _Gate, accepted: int, depth: int) -> None:
        gate.num_idle = 0
        gate.recent.append((accepted, depth))
        if len(gate.recent) > self.window:
            gate.recent.popleft()
        if not gate.is_open or len(gate.recent) == self.window:
            gate.is_open = gate.rate >= self.min_acceptance
        if not gate.is_open:
            gate.recent.clear()

    def reset(self) -> None:
        self._gates.clear()
        self._trace.clear()

    def trace(self) -> list[dict[str, float]]:
        return self._trace.rows()
