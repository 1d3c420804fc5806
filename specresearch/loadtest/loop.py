"""The loop of a pass: submit due requests, step while there is work, sleep until the next arrival.

Time is that of the engine's clock, which is paused during the turns of other passes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.engine import Engine, RequestOutput
from specresearch.loadtest.rows import PassRow
from specresearch.request import Request
from specresearch.rows import StepLog

TICK = 1.0  # seconds between progress reports


@dataclass
class Feed:
    """Which requests are due.

    Attributes:
        times: Arrival times in seconds since the pass began; ignored in a closed loop.
        concurrency: Requests in flight in a closed loop; None if requests arrive by themselves.
    """

    times: Float[np.ndarray, " n"]
    concurrency: int | None = None
    num_submitted: int = 0

    def due(self, now: float, num_in_flight: int) -> list[tuple[int, float]]:
        """Return the numbers and arrival times of the requests to submit now."""
        begin = self.num_submitted
        if self.concurrency is not None:
            end = min(begin + self.concurrency - num_in_flight, len(self.times))
            times = [now] * (end - begin)
        else:
            end = int(np.searchsorted(self.times, now, side="right"))
            times = self.times[begin:end].tolist()
        self.num_submitted += len(times)
        return list(enumerate(times, begin))

    @property
    def is_empty(self) -> bool:
        return self.num_submitted == len(self.times)

    @property
    def next_time(self) -> float:
        """Return the arrival time of the next request. Requires that there is one."""
        return 0.0 if self.concurrency is not None else float(self.times[self.num_submitted])


@dataclass(frozen=True)
class Stops:
    """When to stop a pass: at so many waiting requests, or after so many seconds."""

    max_waiting: int
    max_seconds: float

    def reason(
        self, now: float, num_submitted: int, num_answered: int, num_waiting: int
    ) -> str | None:
        """Return why a pass has to stop after so many seconds, or None if it goes on."""
        state = (
            f"{num_submitted} requests arrived and {num_answered} were answered in {now:.0f} s, "
            f"{num_waiting} wait"
        )
        if num_waiting > self.max_waiting:
            return f"the queue grows without bound: {state} (max_waiting={self.max_waiting})"
        if now > self.max_seconds:
            return f"out of time: {state} (max_seconds={self.max_seconds:g})"
        return None


@dataclass
class LoadLoop:
    """Runs the requests of one pass through an engine.

    Attributes:
        request: Makes the request of a number.
        on_output: Called with each finished request.
        on_tick: Called about once a second.
        num_tokens: Tokens generated so far.
        wall: Seconds of the pass so far.
        stopped: Why the pass was stopped; None if it was not.
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
        """Return whether every request has been answered, or the pass was stopped."""
        return self.stopped is not None or (self.feed.is_empty and self.num_in_flight == 0)

    def run(self, seconds: float = math.inf) -> None:
        """Run the pass to its end, or for so many seconds but at least one step.

        If the engine raises an error, its requests are aborted.
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
                self._check_stops()
                if self._now >= end:
                    break
            self.wall = self._now
            goes_on = not self.is_over
        finally:
            if goes_on:
                self._pause()
            else:
                self.engine.abort()
                list(self.engine.pop_finished())  # or the next pass would get them

    def row(self, **rest: Any) -> PassRow:
        """Return the row of the finished pass.

        Args:
            rest: Further attributes of the row.
        """
        return PassRow(
            key=self.log.key,
            wall=self.wall,
            num_requests=len(self.feed.times),
            num_submitted=self.feed.num_submitted,
            num_finished=self.num_finished,
            last_arrival=self.last_arrival,
            num_waiting=self.num_waiting,
            stopped=self.stopped,
            trace=tuple(self.engine.controller.trace()),
            **rest,
        )

    def resume(self) -> None:
        """Let the engine's clock run again if this loop has paused it."""
        if self._is_paused:
            self.engine.clock.resume()
            self._is_paused = False

    def _pause(self) -> None:
        self.engine.clock.pause()
        self._is_paused = True

    @property
    def _now(self) -> float:
        return self.engine.clock.now() - self.log.begin

    def _submit(self) -> None:
        for number, time in self.feed.due(self._now, self.num_in_flight):
            self.engine.submit(self.request(number), self.log.begin + time)
            self.last_arrival = time

    def _step(self) -> None:
        record = self.engine.step()
        if record is not None:
            self.log.add(record)
            self.num_tokens += sum(record.num_new_tokens)
        for output in self.engine.pop_finished():
            self.num_finished += 1
            self.on_output(output.checked())

    def _check_stops(self) -> None:
        now = self._now
        self.num_waiting = len(self.engine.scheduler.waiting)
        reason = self.stops.reason(
            now, self.feed.num_submitted, self.num_finished, self.num_waiting
        )
        self.stopped = reason or self.stopped
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self.on_tick(self)
