"""Two sides of a load test on the same requests: throughput, latency and the classes' tails."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from specresearch.bench.estimate import Estimate, paired_ratio
from specresearch.bench.side_comparison import (
    LATENCY,
    THROUGHPUT,
    ClassChange,
    MeanStepTimes,
    SideComparison,
    ideal_speedup,
)
from specresearch.loadtest.request_figures import PERCENTS, ranked, stretches_of
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.window import NUM_BLOCKS, Window
from specresearch.statistics import Interval, percentile_ratio


@dataclass(frozen=True)
class PairedSides:
    """A side and the side that it is compared with.

    Attributes:
        repeats: The repeats in which both have a window.
        num_slow: As `slow` in `statistics.spread`.
    """

    own: LoadSide
    other: LoadSide

    @property
    def repeats(self) -> list[int]:
        return sorted(self.own.windows.keys() & self.other.windows.keys())

    @property
    def num_slow(self) -> int:
        return min(self.own.num_slow, self.other.num_slow)

    def throughput_ratio(self) -> Estimate | None:
        """Return the ratio of tokens per second, paired by stretches of time."""
        rates = [side.totals(self.repeats)[:, [0, 3]] for side in (self.own, self.other)]
        return paired_ratio(rates[0], rates[1], self.num_slow)

    def latency_ratio(self) -> Estimate | None:
        """Return the other side's mean time from arrival to last token over this side's.

        Only requests that both sides answered count. Requests that arrive together wait for one
        another, so stretches of arrival time are the units.
        """
        totals = np.zeros((NUM_BLOCKS, 3))
        for repeat in self.repeats:
            totals += _by_arrival(self.own.windows[repeat], self.other.windows[repeat])
        if not totals[:, 2].any():
            return None
        return paired_ratio(totals[:, [1, 2]], totals[:, [0, 2]], self.num_slow)

    def percentile_ratios(
        self, name: str, category: str | None = None
    ) -> list[tuple[float | None, Interval | None]]:
        """Return the ratio of each of PERCENTS of a latency, paired by stretches of the workload.

        Args:
            category: The class of requests; None for all.
        """
        rows = []
        for side in (self.own, self.other):
            rows.append([row for row in side.counted if category in (None, row.category)])
        stretches = stretches_of([*rows[0], *rows[1]])
        above, below = (ranked(part, name, stretches, self.num_slow) for part in rows)
        ratios = []
        for own, other in zip(above, below, strict=True):
            ratios.append(percentile_ratio(own, other, self.num_slow))
        return ratios

    def class_change(self, category: str) -> ClassChange:
        """Return how the time per output token of a class of requests changed."""
        ratios = self.percentile_ratios("tpot", category)
        median = Estimate.of(*ratios[PERCENTS.index(50)])
        slowest = Estimate.of(*ratios[PERCENTS.index(99)])
        return ClassChange(category, median, slowest, _has_signature(median, slowest))

    def comparison(self, max_running: int | None, categories: list[str]) -> SideComparison:
        """Return what the report says of the side, the other side being the baseline.

        Where requests arrive by themselves and both sides keep up, both do the same work, so
        latencies are compared; otherwise throughput is.
        """
        is_overloaded = any(side.is_overloaded(max_running) for side in (self.own, self.other))
        by_throughput = is_overloaded or not self.own.is_open
        own, baseline = (step_times(side) for side in (self.own, self.other))
        return SideComparison(
            gain=self.throughput_ratio() if by_throughput else self.latency_ratio(),
            basis=THROUGHPUT if by_throughput else LATENCY,
            decode_speedup=_decode_speedup(own, baseline),
            ideal_speedup=ideal_speedup(own, baseline),
            classes=tuple(self.class_change(name) for name in categories),
        )


def step_times(side: LoadSide) -> MeanStepTimes | None:
    """Return the average step of all passes of a side."""
    passes = list(side.steps.values())
    if not passes:
        return None
    sums = {part: sum(steps.times[part] for steps in passes) for part in passes[0].times}
    num_steps = sum(len(steps.start) for steps in passes)
    return MeanStepTimes.of(sums, num_steps, float(sum(steps.new.sum() for steps in passes)))


def _decode_speedup(own: MeanStepTimes | None, baseline: MeanStepTimes | None) -> Estimate | None:
    """Return the ratio of seconds of steps per token; None if either side decoded nothing."""
    if own is None or baseline is None or not own.tokens or not baseline.tokens:
        return None
    seconds = [_decode_seconds(side) / side.tokens for side in (own, baseline)]
    return Estimate.of(seconds[1] / seconds[0]) if seconds[0] else None


def _decode_seconds(times: MeanStepTimes) -> float:
    return times.seconds - times.parts["schedule"]


def _by_arrival(own: Window, other: Window) -> Float[np.ndarray, "blocks 3"]:
    """Return a row per stretch of arrival time.

    Its columns are the seconds of this side and of the other, and the requests both answered.
    """
    begin, end = max(own.begin, other.begin), min(own.end, other.end)
    if end <= begin:
        return np.zeros((NUM_BLOCKS, 3))
    latencies = {row.id: row.e2el for row in other.rows}
    shared = [row for row in own.rows if row.id in latencies]
    arrivals = [row.arrival for row in shared]
    seconds = [row.e2el for row in shared]
    other_seconds = [latencies[row.id] for row in shared]
    edges = np.linspace(begin, end, NUM_BLOCKS + 1)
    columns = []
    for weights in (seconds, other_seconds, np.ones(len(shared))):
        columns.append(np.histogram(arrivals, edges, weights=weights)[0])
    return np.stack(columns, axis=1)


def _has_signature(median: Estimate | None, slowest: Estimate | None) -> bool | None:
    """Return whether the slowest requests pay for a faster median; None if it cannot be told."""
    if median is None or slowest is None or not median.interval or not slowest.interval:
        return None
    if median.is_below(1.0) and slowest.is_above(1.0):
        return True
    return False if median.interval[0] >= 1 or slowest.interval[1] <= 1 else None
