"""One side of a load run: the figures of all its passes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from specresearch.bench.acceptance_figures import acceptance_figures
from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.window import NUM_BLOCKS, Limits, Window, num_slow
from specresearch.metrics import Counts
from specresearch.rows import RequestRow
from specresearch.statistics import (
    Percentile,
    Statistic,
    interval_of,
    percentile,
    percentile_of,
    ratio_of,
    value_of,
)

LATENCIES = ("ttft", "tpot", "itl", "e2el")
RANKED = ("ttft", "tpot", "e2el")  # of a request: what has an interval
PERCENTS = (50, 90, 99)
COUNTED = ("tokens", "requests", "good", "seconds")  # the columns of a window's blocks
RATES = {"throughput": "tokens", "request_throughput": "requests", "goodput": "good"}
ANSWERED = 0.9  # of what came, by a side that keeps up
NUM_LOOKS = 12  # at the queue, over a window


@dataclass(frozen=True)
class LoadSide:
    """All passes of one side, by repeat. is_open: requests come by themselves."""

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
        limits: Limits,
    ) -> "LoadSide":
        own = {row.key.repeat: row for row in passes if row.key.side == name}
        by_repeat: dict[int, list[RequestRow]] = defaultdict(list)
        for request in requests:
            if request.key.side == name and request.key.repeat in own:
                by_repeat[request.key.repeat].append(request)
        windows = {
            repeat: Window.of(row, by_repeat[repeat], concurrency, limits, steps.get(repeat))
            for repeat, row in own.items()
        }
        middles = {repeat: window for repeat, window in windows.items() if window is not None}
        return LoadSide(name, concurrency is None, own, by_repeat, steps, middles)

    @cached_property
    def counted(self) -> list[RequestRow]:
        return [row for window in self.windows.values() for row in window.rows]

    @property
    def throughput(self) -> float:
        """Tokens per second; 0 where no pass has a middle."""
        return value_of(_rate("tokens"), self.totals()) or 0.0

    def totals(self, repeats: Sequence[int] | None = None) -> Float[np.ndarray, "n 4"]:
        """Return the stretches of a window, those at the same place of all passes added up: they hold the same requests."""
        chosen = list(self.windows if repeats is None else repeats)
        if not chosen:
            return np.zeros((0, len(COUNTED)))
        return np.sum([self.windows[repeat].blocks for repeat in chosen], axis=0)

    @property
    def num_slow(self) -> int:
        return num_slow(list(self.windows.values()))

    def figures(self, max_running: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its figures and the intervals of those that have one."""
        rows, windows = self.counted, self.windows.values()
        totals = self.totals()
        told: dict[str, Any] = {
            name: value_of(_rate(column), totals) for name, column in RATES.items()
        }
        slow = self.num_slow
        between = {
            name: interval_of(totals, _rate(column), slow=slow) for name, column in RATES.items()
        }
        ranked, ranks = latencies(rows, slow)
        accepted, lengths = acceptance(rows)
        told |= ranked | accepted
        every = [
            step for repeat in self.windows for step in [self.steps.get(repeat)] if step is not None
        ]
        passes = list(self.passes.values())
        told |= {
            "num_requests": len(rows),
            "num_finished": sum(row.num_finished for row in passes),
            "num_unfinished": sum(row.num_submitted - row.num_finished for row in passes),
            "num_generated_tokens": int(sum(window.blocks[:, 0].sum() for window in windows)),
            "num_preemptions": sum(
                row.num_preemptions for own in self.requests.values() for row in own
            ),
            "waiting_max": max((int(step.waiting.max(initial=0)) for step in every), default=None),
            "waiting_mean": self._over_time("waiting"),
            "running_mean": self._over_time("running"),
            "schedule_share": ratio_of(
                sum(s.schedule for s in every), sum(s.seconds.sum() for s in every)
            ),
            "wall": sum(row.wall for row in passes),
            "overloaded": self.is_overloaded(max_running),
            "too_short": any(self._is_a_beginning(window) for window in windows),
        }
        return told, between | ranks | lengths

    def _over_time(self, name: str) -> float | None:
        """Requests waiting or running, averaged over the windows; nobody does where no step runs."""
        sums = [
            self.steps[repeat].sum_over(name, window.begin, window.end)
            for repeat, window in self.windows.items()
            if repeat in self.steps
        ]
        return (
            ratio_of(sum(sums), sum(window.seconds for window in self.windows.values()))
            if sums
            else None
        )

    def is_overloaded(self, max_running: int) -> bool:
        """Return whether requests came faster than they were answered in some pass."""
        return any(self._falls_behind(repeat, max_running) for repeat in self.passes)

    def _falls_behind(self, repeat: int, max_running: int) -> bool:
        """A queue that stands to the end, and not since a moment ago as after a burst."""
        row, window = self.passes[repeat], self.windows.get(repeat)
        if row.stopped is not None and (
            row.stopped.startswith("the queue") or row.num_waiting > max_running
        ):
            return True
        if not self.is_open or window is None:
            return False
        answered = sum(request.finish <= row.last_arrival for request in self.requests[repeat])
        waiting = self._waiting(repeat, np.linspace(window.begin, window.end, NUM_LOOKS + 1))
        is_standing = waiting[2 * NUM_LOOKS // 3 :].min() > 0
        is_growing = waiting[NUM_LOOKS // 2 :].mean() > waiting[: NUM_LOOKS // 2].mean()
        return bool(answered < ANSWERED * row.num_submitted and is_standing and is_growing)

    def _is_a_beginning(self, window: Window) -> bool:
        """Nearly nobody who came in it was done by its end, for want of time rather than of room."""
        times = [row.e2el - row.queue_time for row in window.rows]
        return self.is_open and window.seconds < (percentile(times, 50) or 0.0)

    def _waiting(self, repeat: int, moments: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Requests in the queue at each moment, of those that got through."""
        stays = [
            (request.arrival, request.arrival + request.queue_time)
            for request in self.requests[repeat]
        ]
        came, left = np.array(stays).reshape(-1, 2).T[:, :, None]  # [requests 1]
        return ((came <= moments) & (moments < left)).sum(0)


def latencies(rows: Sequence[RequestRow], slow: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return percentiles and their intervals, from requests that wait for one another: `slow` as in `stats.spread`."""
    told: dict[str, Any] = {}
    for name in LATENCIES:
        values = latency(rows, name)
        told |= {f"{name}_p{p}": percentile(values, p) for p in PERCENTS}
    stretches = stretches_of(rows)
    intervals: dict[str, Any] = {}
    for name in RANKED:
        found = ranked(rows, name, stretches, slow)
        intervals |= {
            f"{name}_p{p}": at and at.interval for p, at in zip(PERCENTS, found, strict=True)
        }
    return told, intervals


def acceptance(rows: Sequence[RequestRow]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of requests, their repeats added up."""
    by_id: dict[str, list[Counts]] = defaultdict(list)
    for row in rows:
        by_id[row.id].append(row.counts)
    told, intervals = acceptance_figures([Counts.total(counts) for counts in by_id.values()])
    total = Counts.total([row.counts for row in rows])
    rates = [row.counts.draft_acceptance_rate for row in rows if row.counts.num_draft_tokens]
    own = {
        "acceptance_p10": percentile(rates, 10),
        "mean_draft_length": ratio_of(total.num_draft_tokens, total.num_target_forwards),
    }
    return told | own, intervals


def acceptance_profile(side: LoadSide) -> AcceptanceProfile | None:
    """Return how the acceptance of a side varies, or None if it drafted nothing."""
    rows = side.counted
    profile = AcceptanceProfile.of([row.counts for row in rows], [row.id for row in rows])
    if profile is None:
        return None
    rates, intervals = acceptance(rows)
    name = "draft_acceptance_rate"  # requests without drafts are among its units
    return replace(profile, rate=Estimate.of(rates[name], intervals[name]))


def latency(rows: Sequence[RequestRow], name: str) -> Float[np.ndarray, " n"]:
    """Of every request; ITL of every gap, TPOT of those with more than one token."""
    if name == "itl":
        return np.array([gap for row in rows for gap in row.itl], dtype=float)
    kept = [row for row in rows if name != "tpot" or row.itl]
    return np.array([getattr(row, name) for row in kept], dtype=float)


def stretches_of(rows: Sequence[RequestRow]) -> dict[str, int]:
    """Return in which of NUM_BLOCKS successive parts of the workload each request comes, on every side and in every pass."""
    first: dict[str, float] = {}
    for row in rows:
        first[row.id] = min(row.arrival, first.get(row.id, row.arrival))
    ordered = sorted(first, key=lambda id: first[id])
    return {id: rank * NUM_BLOCKS // len(ordered) for rank, id in enumerate(ordered)}


def ranked(
    rows: Sequence[RequestRow], name: str, stretches: Mapping[str, int], slow: int
) -> list[Percentile | None]:
    """Return PERCENTS of a latency."""
    kept = [row for row in rows if name != "tpot" or row.itl]
    units = np.array([stretches[row.id] for row in kept], dtype=int)
    return [percentile_of(latency(kept, name), units, NUM_BLOCKS, p, slow) for p in PERCENTS]


def _rate(name: str) -> Statistic:
    column, seconds = COUNTED.index(name), COUNTED.index("seconds")
    return lambda t: t[..., column] / t[..., seconds]
