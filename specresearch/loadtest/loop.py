"""One pass: submit what is due, step while there is work, sleep until the next arrival.

Time is that of the engine's clock, which is paused while it is another pass's turn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from specresearch.engine import Engine, RequestOutput
from specresearch.request import Request
from specresearch.rows import StepLog

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
    num_finished: int = 0
    num_tokens: int = 0
    last_arrival: float = 0.0
    wall: float = 0.0
    num_waiting: int = 0
    stopped: str | None = None
    _next_tick: float = field(default=TICK, init=False)
    _is_paused: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._pause()

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
        self.resume()
        end = self._now + seconds
        goes_on = False
        try:
            while not self.is_over:
                self._submit()
                if self.engine.has_work:
                    self._step()
                else:
                    due = min(self.feed.next_time - self._now, end - self._now, TICK)
                    self.engine.clock.sleep(due)
                self._look()
                if self._now >= end:
                    break
            self.wall = self._now
            goes_on = not self.is_over
        finally:
            if goes_on:
                self._pause()
            else:
                self.engine.abort()
                for _ in self.engine.pop_finished():
                    pass  # an output that nobody took belongs to this pass, and not to the next

    def _pause(self) -> None:
        """Stop the engine's clock until the next turn."""
        self.engine.clock.pause()
        self._is_paused = True

    def resume(self) -> None:
        """Let the engine's clock run again, if the loop has paused it."""
        if self._is_paused:
            self.engine.clock.resume()
            self._is_paused = False

    @property
    def _now(self) -> float:
        return self.engine.clock.now() - self.log.begin

    def _submit(self) -> None:
        for number, moment in self.feed.due(self._now, self.num_in_flight):
            self.engine.submit(self.request(number), self.log.begin + moment)
            self.last_arrival = moment

    def _step(self) -> None:
        record = self.engine.step()
        if record is not None:
            self.log.add(record)
            self.num_tokens += sum(record.num_new_tokens)
        for output in self.engine.pop_finished():
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
