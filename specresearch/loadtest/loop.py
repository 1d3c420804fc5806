"""One pass: submit what is due, step while there is work, sleep until the next arrival.

Time is the wall clock, which stands still for a pass while it is another's turn.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from specresearch.batch import Request
from specresearch.bench.watching import Watching
from specresearch.engine import Engine, RequestOutput
from specresearch.loadtest.rows import StepLog

TICK = 1.0  # seconds between two looks at how far a pass is


@dataclass
class Feed:
    """Which requests are due. times: of their arrival, seconds since the pass began; ignored with a `concurrency`."""

    times: Float[np.ndarray, " n"]
    concurrency: int | None = None
    num_submitted: int = 0

    def due(self, now: float, num_in_flight: int) -> list[tuple[int, float]]:
        """Numbers and arrival times of the requests to submit at `now`."""
        if self.concurrency is not None:
            end = min(self.num_submitted + self.concurrency - num_in_flight, len(self.times))
            found = [(number, now) for number in range(self.num_submitted, end)]
        else:
            end = int(np.searchsorted(self.times, now, side="right"))
            found = [
                (number, float(self.times[number])) for number in range(self.num_submitted, end)
            ]
        self.num_submitted += len(found)
        return found

    @property
    def is_empty(self) -> bool:
        return self.num_submitted == len(self.times)

    @property
    def next_time(self) -> float:
        """Of the next request, which is there."""
        return 0.0 if self.concurrency is not None else float(self.times[self.num_submitted])


@dataclass(frozen=True)
class Stops:
    """Where a pass gives up. max_waiting: requests in the queue. max_seconds: of the pass."""

    max_waiting: int
    max_seconds: float


@dataclass
class LoadLoop:
    """request: makes the request of a number. on_output: called with each finished one. on_tick: about once a second.
    watching: of the engine's steps, whose time is no part of the pass.

    num_tokens: generated so far. After `run`: wall seconds, the last arrival, the length of the queue, and why the pass was
    `stopped`, if it was.
    """

    engine: Engine
    feed: Feed
    request: Callable[[int], Request]
    log: StepLog
    stops: Stops
    on_output: Callable[[RequestOutput], None]
    on_tick: Callable[["LoadLoop"], None] = lambda loop: None
    watching: Watching = field(default_factory=Watching)
    num_finished: int = 0
    num_tokens: int = 0
    last_arrival: float = 0.0
    wall: float = 0.0
    num_waiting: int = 0
    stopped: str | None = None
    _next_tick: float = field(default=TICK, init=False)
    _left: float = field(init=False)  # when the last turn ended

    def __post_init__(self) -> None:
        self._left = self.log.begin

    @property
    def num_in_flight(self) -> int:
        return self.feed.num_submitted - self.num_finished

    @property
    def is_over(self) -> bool:
        """Every request has been answered, or the pass given up."""
        return self.stopped is not None or (self.feed.is_empty and self.num_in_flight == 0)

    def run(self, seconds: float = math.inf) -> None:
        """To the end of the pass, or of a turn of so many seconds of it and one step at least.

        Raises whatever the engine raises, with its requests aborted.
        """
        rest = self.engine.stand_still(self._left)
        self.log.begin += rest
        self.watching.stand_still(rest)
        end = self._now + seconds
        goes_on = False
        try:
            while not self.is_over:
                self._submit()
                if self.engine.has_work:
                    self._step()
                else:
                    time.sleep(
                        max(min(self.feed.next_time - self._now, end - self._now, TICK), 0.0)
                    )
                self._look()
                if self._now >= end:
                    break
            self.wall, self._left = self._now, time.perf_counter()
            goes_on = not self.is_over
        finally:
            if not goes_on:
                self.engine.abort()
                for _ in self.engine.finished():
                    pass  # an output that nobody took belongs to this pass, and not to the next

    @property
    def _now(self) -> float:
        return time.perf_counter() - self.log.begin

    def _submit(self) -> None:
        for number, moment in self.feed.due(self._now, self.num_in_flight):
            self.engine.submit(self.request(number), self.log.begin + moment)
            self.last_arrival = moment

    def _step(self) -> None:
        record = self.engine.step()
        if record is not None:
            self.log.add(record)
            self.num_tokens += sum(record.num_new_tokens)
        self.log.begin += self.watching.take_seconds()
        for output in self.engine.finished():
            self.num_finished += 1
            self.on_output(output.checked())

    def _look(self) -> None:
        now, self.num_waiting = self._now, len(self.engine.scheduler.waiting)
        came = f"{self.feed.num_submitted} requests came and {self.num_finished} were answered in {now:.0f} s"
        if self.num_waiting > self.stops.max_waiting:
            self.stopped = (
                f"the queue grows without bound: {came}, {self.num_waiting} wait "
                f"(max_waiting={self.stops.max_waiting})"
            )
        elif now > self.stops.max_seconds:
            self.stopped = f"out of time: {came}, {self.num_waiting} wait (max_seconds={self.stops.max_seconds:g})"
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self.on_tick(self)
