"""One pass of a simulation: the real engine and load loop, with a simulated target and clock."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from specresearch.clock import ManualClock
from specresearch.engine import Engine, RequestOutput, SchedulerSettings
from specresearch.loadtest.loop import Feed, LoadLoop, Stops
from specresearch.loadtest.rows import PassRow
from specresearch.metrics import StepRecord
from specresearch.rows import PassKey, RequestRow, StepLog
from specresearch.simulation.machine import Machine
from specresearch.simulation.method import Method
from specresearch.simulation.models import SimulatedTarget
from specresearch.simulation.replays import ReplayedRequest
from specresearch.simulation.rule import ReplayingRule
from specresearch.simulation.timing import Timing


@dataclass(frozen=True)
class SimulatedPass:
    """The rows that a load test would have written."""

    row: PassRow
    requests: list[RequestRow]
    log: StepLog


class SimulatedEngine(Engine):
    """An engine that decodes recorded requests on a simulated machine."""

    machine: Machine

    def step(self) -> StepRecord | None:
        record = super().step()
        self.machine.end_step()
        return record


@dataclass(frozen=True)
class Simulation:
    """One side on a machine.

    Attributes:
        max_running: Requests that decode together.
        max_len: The most tokens of a request.
    """

    timing: Timing
    method: Method
    scheduling: SchedulerSettings
    max_running: int
    max_len: int

    def run(
        self,
        key: PassKey,
        feed: Feed,
        request: Callable[[int], ReplayedRequest],
        stops: Stops,
        seed: int = 0,
    ) -> SimulatedPass:
        """Simulate one pass, from an empty machine and a controller that has learned nothing.

        Args:
            request: Makes the request of a number.
            seed: Seed of the noise of times.
        """
        self.timing.restart(seed)
        can_draft = self.method.num_draft_tokens > 0
        machine = Machine(self.timing, ManualClock(), can_draft=can_draft)
        engine = SimulatedEngine(
            SimulatedTarget(machine, self.max_len),
            self.method.proposer(machine),
            ReplayingRule(machine),
            self.method.controller,
            max_batch_size=self.max_running,
            scheduling=self.scheduling,
            clock=machine.clock,
        )
        engine.machine = machine
        log = StepLog(key, machine.clock.now())
        rows: list[RequestRow] = []
        in_flight: dict[str, ReplayedRequest] = {}

        def submit(number: int) -> ReplayedRequest:
            planned = request(number)
            in_flight[planned.id] = planned
            return planned

        def keep(output: RequestOutput) -> None:
            rows.append(_request_row(log, output, in_flight.pop(output.id)))

        loop = LoadLoop(engine, feed, submit, log, stops, on_output=keep)
        loop.run()
        return SimulatedPass(loop.row(), rows, log)


def _request_row(log: StepLog, output: RequestOutput, request: ReplayedRequest) -> RequestRow:
    """Return the row of an output: that of the recorded request, without tokens."""
    row = RequestRow.of(
        log.key,
        output,
        row=request.recorded_id,
        begin=log.begin,
        id=request.recorded_id,
        category=request.category,
    )
    has_ended = len(output.token_ids) == request.num_tokens
    finish_reason = request.finish_reason if has_ended else output.finish_reason
    return replace(row, finish_reason=finish_reason, token_ids=())
