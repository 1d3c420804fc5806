"""One side of a load test: the figures of all its passes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from specresearch.loadtest.request_figures import acceptance, acceptance_in_all, latencies
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.window import LatencyLimits, Window, num_slow
from specresearch.metrics import Counts
from specresearch.rows import RequestRow
from specresearch.statistics import Statistic, interval_of, percentile, ratio_of, value_of

BLOCK_COLUMNS = ("tokens", "requests", "good", "seconds")  # of a window
RATES = {"throughput": "tokens", "request_throughput": "requests", "goodput": "good"}
MIN_ANSWERED = 0.9  # of all requests, by a side that keeps up
NUM_QUEUE_SAMPLES = 12  # over a window


@dataclass(frozen=True)
class LoadSide:
    """All passes of one side, by repeat.

    Attributes:
        is_open: Whether requests arrive by themselves.
        windows: The windows of the passes that have one.
    """

    name: str
    is_open: bool
    passes: Mapping[int, PassRow]
    requests: Mapping[int, Sequence[RequestRow]]
    steps: Mapping[int, PassSteps]
    windows: Mapping[int, Window]

    @staticmethod
    def of(
        name: str,
        passes: Sequence[PassRow],
        requests: Sequence[RequestRow],
        steps: Mapping[int, PassSteps],
        concurrency: int | None,
        limits: LatencyLimits,
    ) -> "LoadSide":
        """Return the side of a name from the rows of all sides.

        Args:
            steps: The side's steps by repeat, as far as they are known.
            concurrency: Requests in flight in a closed loop; None for open arrivals.
        """
        own_passes = {row.key.repeat: row for row in passes if row.key.side == name}
        by_repeat: dict[int, list[RequestRow]] = defaultdict(list)
        for request in requests:
            if request.key.side == name and request.key.repeat in own_passes:
                by_repeat[request.key.repeat].append(request)
        windows = {}
        for repeat, row in own_passes.items():
            window = Window.of(row, by_repeat[repeat], concurrency, limits, steps.get(repeat))
            if window is not None:
                windows[repeat] = window
        return LoadSide(
            name,
            is_open=concurrency is None,
            passes=own_passes,
            requests=by_repeat,
            steps=steps,
            windows=windows,
        )

    @cached_property
    def counted(self) -> list[RequestRow]:
        """Return the requests that count, of all passes."""
        return [row for window in self.windows.values() for row in window.rows]

    @property
    def throughput(self) -> float:
        """Return tokens per second; 0 if no pass has a window."""
        return value_of(_rate("tokens"), self.totals()) or 0.0

    def totals(self, repeats: Sequence[int] | None = None) -> Float[np.ndarray, "n 4"]:
        """Return the blocks of the windows, added up over passes: equal blocks, equal requests."""
        chosen = list(self.windows if repeats is None else repeats)
        if not chosen:
            return np.zeros((0, len(BLOCK_COLUMNS)))
        return np.sum([self.windows[repeat].blocks for repeat in chosen], axis=0)

    @property
    def num_slow(self) -> int:
        return num_slow(list(self.windows.values()))

    def figures(self, max_running: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the side's figures, and the intervals of those that have one."""
        totals = self.totals()
        slow = self.num_slow
        figures: dict[str, Any] = {}
        intervals: dict[str, Any] = {}
        for name, column in RATES.items():
            figures[name] = value_of(_rate(column), totals)
            intervals[name] = interval_of(totals, _rate(column), slow=slow)
        for values, bounds in (latencies(self.counted, slow), self._acceptance()):
            figures |= values
            intervals |= bounds
        return figures | self._counts() | self._load(max_running), intervals

    @cached_property
    def counts_of_passes(self) -> Counts | None:
        """Return what a server counted in whole passes, where its answers do not say it."""
        of_passes = [row.counts for row in self.passes.values() if row.counts is not None]
        if not of_passes or any(row.counts.num_drafts for row in self.counted):
            return None
        return Counts.total(of_passes)

    def _acceptance(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return how much was accepted, and its intervals."""
        if self.counts_of_passes is not None:
            return acceptance_in_all(self.counts_of_passes)
        return acceptance(self.counted)

    def _counts(self) -> dict[str, int]:
        passes = self.passes.values()
        requests = [row for rows in self.requests.values() for row in rows]
        tokens = sum(window.blocks[:, 0].sum() for window in self.windows.values())
        return {
            "num_requests": len(self.counted),
            "num_finished": sum(row.num_finished for row in passes),
            "num_unfinished": sum(row.num_submitted - row.num_finished for row in passes),
            "num_failed": sum(row.num_failed for row in passes),
            "num_generated_tokens": int(tokens),
            "num_preemptions": sum(row.num_preemptions for row in requests),
        }

    def _load(self, max_running: int | None) -> dict[str, Any]:
        """Return the figures of the queue, the scheduler and whether the load was served."""
        steps = [self.steps[repeat] for repeat in self.windows if repeat in self.steps]
        schedule = sum(pass_steps.schedule for pass_steps in steps)
        seconds = sum(pass_steps.seconds.sum() for pass_steps in steps)
        longest_queues = [int(pass_steps.waiting.max(initial=0)) for pass_steps in steps]
        return {
            "waiting_max": max(longest_queues, default=None),
            "waiting_mean": self._time_average("waiting"),
            "running_mean": self._time_average("running"),
            "schedule_share": ratio_of(schedule, seconds),
            "wall": sum(row.wall for row in self.passes.values()),
            "overloaded": self.is_overloaded(max_running),
            "too_short": any(map(self._is_too_short, self.windows.values())),
        }

    def _time_average(self, name: str) -> float | None:
        """Return requests waiting or running, averaged over the windows."""
        sums = []
        for repeat, window in self.windows.items():
            if repeat in self.steps:
                sums.append(self.steps[repeat].sum_over(name, window.begin, window.end))
        if not sums:
            return None
        return ratio_of(sum(sums), sum(window.seconds for window in self.windows.values()))

    def is_overloaded(self, max_running: int | None) -> bool:
        """Return whether requests arrived faster than they were answered in some pass."""
        return any(self._falls_behind(repeat, max_running) for repeat in self.passes)

    def _falls_behind(self, repeat: int, max_running: int | None) -> bool:
        row, window = self.passes[repeat], self.windows.get(repeat)
        if row.stopped is not None and (
            row.stopped.startswith("the queue")
            or (max_running is not None and row.num_waiting > max_running)
        ):
            return True
        if not self.is_open or window is None:
            return False
        answered = sum(request.finish <= row.last_arrival for request in self.requests[repeat])
        times = np.linspace(window.begin, window.end, NUM_QUEUE_SAMPLES + 1)
        waiting = self._queue_lengths(repeat, times)
        # A queue that a burst left behind empties again; one of an overload stands and grows.
        is_standing = waiting[2 * NUM_QUEUE_SAMPLES // 3 :].min() > 0
        first_half, second_half = np.split(waiting, [NUM_QUEUE_SAMPLES // 2])
        is_growing = second_half.mean() > first_half.mean()
        return bool(answered < MIN_ANSWERED * row.num_submitted and is_standing and is_growing)

    def _is_too_short(self, window: Window) -> bool:
        """Return whether the window is shorter than a median request's service time."""
        times = [row.e2el - row.queue_time for row in window.rows]
        return self.is_open and window.seconds < (percentile(times, 50) or 0.0)

    def _queue_lengths(self, repeat: int, times: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return how many requests wait at each time, of those that finished."""
        requests = self.requests[repeat]
        begin = np.array([request.arrival for request in requests])[:, None]
        end = begin + np.array([request.queue_time for request in requests])[:, None]
        return ((begin <= times) & (times < end)).sum(0)


def _rate(name: str) -> Statistic:
    column, seconds = BLOCK_COLUMNS.index(name), BLOCK_COLUMNS.index("seconds")
    return lambda t: t[..., column] / t[..., seconds]
