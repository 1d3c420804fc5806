"""The clock of an engine: timestamps, pauses, and how long each part of a step takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch


class Lap:
    """One timed stretch of work, used as a context manager. See `Clock.lap`.

    On CUDA, events mark where it begins and ends, and in between where the clock stops and goes on.
    """

    def __init__(self, clock: "Clock", name: str, device: torch.device | None) -> None:
        self.name = name
        self._clock = clock
        self._device = device
        self._seconds = 0.0
        self._events: list[torch.cuda.Event] = []

    def __enter__(self) -> "Lap":
        self.mark()
        self._clock.running.append(self)
        self._begin = self._clock.now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._seconds = self._clock.now() - self._begin
        self._clock.running.remove(self)
        self.mark()

    def mark(self) -> None:
        """Begin or end a stretch that counts, on CUDA."""
        if self._device is not None:
            event = torch.cuda.Event(enable_timing=True)
            if self._clock.stream is None:
                self._clock.stream = torch.cuda.current_stream(self._device)
            event.record(self._clock.stream)
            self._events.append(event)

    @property
    def is_done(self) -> bool:
        """Whether its work is over, so that its length is known."""
        if self._device is None:
            return True
        return self not in self._clock.running and self._events[-1].query()

    @property
    def seconds(self) -> float:
        """Return the length of a lap that is done."""
        if self._device is None:
            return self._seconds
        stretches = zip(self._events[::2], self._events[1::2], strict=True)
        return sum(begin.elapsed_time(end) for begin, end in stretches) / 1e3


class Clock:
    """Tell the time in seconds, excluding the time during which the clock was paused.

    Every timestamp of an engine comes from its clock: arrivals, tokens and steps. Pausing it
    excludes whatever happens meanwhile, such as measuring or another engine's turn, from all.

    Args:
        device: Where the work of a lap runs. On CUDA a lap is measured on the GPU's own stream, so
            that it covers kernels that are still queued when the host goes on.

    Attributes:
        running: Laps that have begun and not ended.
        stream: Where all laps until the next call of `pop_laps` are marked; None before the first.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._num_pauses = 0
        self._paused_at = 0.0
        self._excluded = 0.0
        self._laps: list[Lap] = []
        self.running: list[Lap] = []
        self.stream: torch.cuda.Stream | None = None

    def now(self) -> float:
        """Return the current time in seconds."""
        read = self._paused_at if self._num_pauses else self._read()
        return read - self._excluded

    def pause(self) -> None:
        """Stop the clock. Pauses nest: it runs again after as many calls of `resume`."""
        if self._num_pauses == 0:
            self._mark_laps()
            self._paused_at = self._read()
        self._num_pauses += 1

    def resume(self) -> None:
        """Undo one `pause`."""
        self._num_pauses -= 1
        if self._num_pauses == 0:
            self._mark_laps()
            self._excluded += self._read() - self._paused_at

    @contextmanager
    def paused(self, *, wait: bool = False) -> Iterator[None]:
        """Pause the clock for the duration of the block.

        Args:
            wait: On CUDA, wait for queued work before and after, so that `now` tells neither's time
                with the other's. Laps need no wait.
        """
        self._wait(wait)
        self.pause()
        try:
            yield
        finally:
            self._wait(wait)
            self.resume()

    def sleep(self, seconds: float) -> None:
        """Wait; a negative time is none."""
        time.sleep(max(seconds, 0.0))

    def lap(self, name: str, *, on_host: bool = False) -> Lap:
        """Return a context manager that adds the time of its block to `name`.

        Args:
            name: Laps of one name are added up by `pop_laps`. Laps may nest.
            on_host: Measure host time on CUDA as well.
        """
        lap = Lap(self, name, None if on_host else self._device)
        self._laps.append(lap)
        return lap

    def discard(self, lap: Lap) -> None:
        """Forget a lap in which nothing was done."""
        self._laps.remove(lap)

    def forget_laps(self) -> None:
        """Drop all laps since the last call of `pop_laps`."""
        self._laps.clear()

    def pop_laps(self) -> dict[str, float]:
        """Return seconds by name since the last call, without waiting.

        On CUDA, laps whose work is still queued count in a later call.
        """
        self.stream = None  # looked up once a step, which may run on another than the last
        seconds: dict[str, float] = {}
        unfinished: list[Lap] = []
        for lap in self._laps:
            if lap.is_done:
                seconds[lap.name] = seconds.get(lap.name, 0.0) + lap.seconds
            else:
                unfinished.append(lap)
        self._laps = unfinished
        return seconds

    def _mark_laps(self) -> None:
        for lap in self.running:
            lap.mark()

    def _wait(self, wait: bool) -> None:
        if wait and self._device is not None:
            torch.cuda.synchronize(self._device)

    def _read(self) -> float:
        return time.perf_counter()


class ManualClock(Clock):
    """A clock that only moves when told to, for simulations and tests."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward. While it is paused this has no effect on `now`."""
        self._time += seconds

    def sleep(self, seconds: float) -> None:
        self.advance(max(seconds, 0.0))

    def _read(self) -> float:
        return self._time
