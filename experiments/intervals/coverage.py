"""Measure how often 95% intervals cover the true value, on simulated data.

The percentile bootstrap is compared with the project's own intervals.

    python experiments/intervals/coverage.py --runs 4000
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from specresearch.loadtest.window import NUM_BLOCKS, slow_within
from specresearch.statistics import (
    POSITIVE,
    SHARE,
    Interval,
    interval_of,
    percentile_of,
    percentile_ratio,
)

HERE = Path(__file__).parent
SIZES = (8, 12, 24, 50)
NUM_RESAMPLES = 1000
OLD_BLOCKS = 10
Rng = np.random.Generator
Sample = tuple[np.ndarray, float, Interval]  # totals of units, the true ratio, its bounds


def speedups(spread: float, sizes: float = 0.3) -> Callable[[Rng, int], Sample]:
    """Draw groups with lognormal speedups and times."""

    def draw(rng: Rng, num: int) -> Sample:
        fast, ratio = rng.lognormal(0, sizes, num), rng.lognormal(0, spread, num)
        return np.stack([fast * ratio, fast], axis=1), float(np.exp(spread**2 / 2)), POSITIVE

    return draw


def slowdowns(rng: Rng, num: int) -> Sample:
    """Draw groups whose speedups are skewed to the other side."""
    totals, true, bounds = speedups(0.45)(rng, num)
    return totals[:, ::-1], 1 / true, bounds


def copied_or_not(rng: Rng, num: int) -> Sample:
    """Draw prompts of which three in ten are three times as fast as plain decoding."""
    fast, ratio = rng.lognormal(0, 0.3, num), np.where(rng.random(num) < 0.3, 3.0, 1.0)
    return np.stack([fast * ratio, fast], axis=1), 1.6, POSITIVE


def acceptance(a: float, b: float) -> Callable[[Rng, int], Sample]:
    """Draw prompts of some sixty drafts each with beta-distributed acceptance rates."""

    def draw(rng: Rng, num: int) -> Sample:
        drafted = rng.poisson(60, num) + 5
        accepted = rng.binomial(drafted, rng.beta(a, b, num))
        return np.stack([accepted, drafted], axis=1).astype(float), a / (a + b), SHARE

    return draw


def acceptance_length(
    imperfect: float, a: float, b: float, shortest: float
) -> Callable[[Rng, int], Sample]:
    """Draw prompts whose drafts differ in length.

    Args:
        imperfect: Share of the prompts with beta-distributed acceptance rates; the others accept
            every draft.
        shortest: Mean length of a prompt's drafts, at least; at most it is 10.
    """
    longest = 10.0

    def draw(rng: Rng, num: int) -> Sample:
        drafts = rng.poisson(10, num) + 3
        drafted = (drafts * rng.uniform(shortest, longest, num)).round()
        rates = np.where(rng.random(num) < imperfect, rng.beta(a, b, num), 1.0)
        accepted = rng.binomial(drafted.astype(int), rates)
        rate = 1 - imperfect * b / (a + b)
        bounds = 0.0, float((drafted / drafts).max())
        totals = np.stack([accepted, drafts], axis=1).astype(float)
        return totals, rate * (shortest + longest) / 2, bounds

    return draw


POPULATIONS: dict[str, Callable[[Rng, int], Sample]] = {
    "speedup, lognormal 0.45": speedups(0.45),
    "slowdown, lognormal 0.45": slowdowns,
    "speedup, lognormal 0.8": speedups(0.8),
    "speedup 0.3, sizes lognormal 0.8": speedups(0.3, 0.8),
    "speedup, copied or not": copied_or_not,
    "acceptance, beta(2, 2)": acceptance(2, 2),
    "acceptance, beta(0.5, 6)": acceptance(0.5, 6),
    "acceptance, beta(6, 0.8)": acceptance(6, 0.8),
    "acceptance length, beta(6, 0.8)": acceptance_length(1.0, 6, 0.8, shortest=5),
    "acceptance length, mostly copied": acceptance_length(0.2, 8, 2, shortest=7),
}


def ratio(totals: np.ndarray) -> np.ndarray:
    return totals[..., 0] / totals[..., 1]


def paired_rates(totals: np.ndarray) -> np.ndarray:
    return totals[..., 0] / totals[..., 1] / (totals[..., 2] / totals[..., 3])


def bootstrap(
    totals: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    rng: Rng,
    method: str = "percentile",
) -> Interval:
    """Return the interval of the bootstrap over rows."""

    def resampled(rows: np.ndarray, axis: int) -> np.ndarray:
        return statistic(totals[rows].sum(-2))

    result = stats.bootstrap(
        (np.arange(len(totals)),),
        resampled,
        vectorized=True,
        n_resamples=NUM_RESAMPLES,
        method=method,
        rng=rng,
    )
    low, high = result.confidence_interval
    return float(low), float(high)


def holds(interval: Interval | None, true: float) -> float:
    """Return 1 if the interval covers the true value, 0 if not, NaN if there is none."""
    return np.nan if interval is None else float(interval[0] <= true <= interval[1])


def of_ratio(draw: Callable[[Rng, int], Sample], num: int, rng: Rng) -> tuple[float, float]:
    totals, true, bounds = draw(rng, num)
    return holds(bootstrap(totals, ratio, rng), true), holds(
        interval_of(totals, ratio, bounds), true
    )


def of_percentile(percent: int, num: int, rng: Rng, *, is_ratio: bool) -> tuple[float, float]:
    """Return a percentile's interval for lognormal latencies, or of two correlated sides' ratio."""
    shared = rng.normal(0, 0.4, num)
    sides = [np.exp(shared + rng.normal(0, 0.3, num)) for _ in range(2)]
    true = float(np.exp(0.5 * normal_quantile(percent)))
    indices = rng.integers(num, size=(NUM_RESAMPLES // 2, num))
    resampled = [np.percentile(side[indices], percent, axis=1) for side in sides]
    intervals = [percentile_of(side, np.arange(num), num, percent) for side in sides]
    if is_ratio:
        low, high = np.quantile(resampled[0] / resampled[1], [0.025, 0.975])
        return holds((low, high), 1.0), holds(percentile_ratio(intervals[0], intervals[1])[1], 1.0)
    low, high = np.quantile(resampled[0], [0.025, 0.975])
    assert intervals[0] is not None
    return holds((low, high), true), holds(intervals[0].interval, true)


def normal_quantile(percent: int) -> float:
    return {50: 0.0, 90: 1.2815515655, 99: 2.3263478740}[percent]


def closed_loop(rng: Rng, concurrency: int, num: int, spread: float = 0.4) -> tuple[float, float]:
    """Simulate a closed loop of requests with lognormal lengths and speeds."""
    lengths = np.maximum(rng.lognormal(np.log(100), 0.5, num).round(), 5)
    speeds = rng.lognormal(-(spread**2) / 2, spread, num)
    old, new, slow = [], [], NUM_BLOCKS
    for seconds in (lengths / speeds, lengths):
        free, start = np.zeros(concurrency), np.zeros(num)
        for i in range(num):
            server = int(free.argmin())
            start[i] = free[server]
            free[server] += seconds[i]
        end = start + seconds
        window = np.sort(end)[concurrency - 1], start[-1]
        for blocks, num_blocks in ((old, OLD_BLOCKS), (new, NUM_BLOCKS)):
            edges = np.linspace(*window, num_blocks + 1)
            done = (np.clip((edges[:, None] - start) / seconds, 0, 1) * lengths).sum(1)
            blocks += [np.diff(done), np.diff(edges)]
        counted = seconds[(end > window[0]) & (end <= window[1])]
        slow = min(slow, slow_of(window[1] - window[0], counted))
    true = float(np.exp(-(spread**2)))
    before = bootstrap(np.stack(old, axis=1), paired_rates, rng)
    return holds(before, true), holds(
        interval_of(np.stack(new, axis=1), paired_rates, POSITIVE, slow), true
    )


def queue(rng: Rng, load: float, num: int, percent: int, truth: float) -> tuple[float, float]:
    """Simulate a queue with one server, and take a percentile of its latencies."""
    gaps, services = rng.exponential(1 / load, num), rng.exponential(1.0, num)
    waits = np.zeros(num)
    wait = float(rng.exponential(1 / (1 - load))) * float(
        rng.random() < load
    )  # stationary from the first request on
    for i in range(num):
        wait = max(wait - gaps[i], 0.0) if i else wait
        waits[i] = wait
        wait += services[i]
    times = waits + services
    indices = rng.integers(num, size=(300, num))
    low, high = np.quantile(np.percentile(times[indices], percent, axis=1), [0.025, 0.975])
    interval = percentile_of(
        times, np.arange(num) * NUM_BLOCKS // num, NUM_BLOCKS, percent, slow_of(num / load, times)
    )
    assert interval is not None
    return holds((low, high), truth), holds(interval.interval, truth)


def slow_of(seconds: float, times: np.ndarray) -> int:
    return slow_within(seconds, times) if len(times) else 0


def cases() -> dict[tuple[str, str], Callable[[Rng], tuple[float, float]]]:
    cases_by_name: dict[tuple[str, str], Callable[[Rng], tuple[float, float]]] = {}
    for name, draw in POPULATIONS.items():
        cases_by_name |= {
            (name, f"n = {num}"): lambda rng, draw=draw, num=num: of_ratio(draw, num, rng)
            for num in SIZES
        }
    for percent, sizes in ((50, SIZES), (90, (50, 200)), (99, (100, 500, 1000))):
        for is_ratio in (False, True):
            name = f"latency P{percent}" + (", method / plain" if is_ratio else "")
            cases_by_name |= {
                (name, f"n = {num}"): lambda rng, p=percent, num=num, r=is_ratio: of_percentile(
                    p, num, rng, is_ratio=r
                )
                for num in sizes
            }
    for concurrency, num in ((1, 24), (4, 48), (8, 80), (8, 200), (16, 128), (16, 400)):
        what = "throughput ratio, closed loop", f"{concurrency} in flight, {num} requests"
        cases_by_name[what] = lambda rng, c=concurrency, num=num: closed_loop(rng, c, num)
    for load, num in ((0.5, 100), (0.5, 400), (0.8, 400), (0.8, 2000)):
        for percent in (50, 90):
            truth = float(-np.log(1 - percent / 100) / (1 - load))
            what = f"latency P{percent} in a queue", f"load {load}, {num} requests"
            cases_by_name[what] = lambda rng, a=(load, num, percent, truth): queue(rng, *a)
    return cases_by_name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=4000)
    num_runs = parser.parse_args().runs
    rows = []
    for number, ((figure, size), simulate) in enumerate(cases().items()):
        rng = np.random.default_rng([0, number])
        held = np.array([simulate(rng) for _ in range(num_runs)])
        has_interval = ~np.isnan(held[:, 1])
        row = {
            "figure": figure,
            "size": size,
            "bootstrap": held[:, 0].mean(),
            "has_interval": has_interval.mean(),
        }
        row |= {"jackknife": held[has_interval, 1].mean() if has_interval.any() else np.nan}
        row |= {"wrong": (held[:, 1] == 0).mean()}
        rows.append(row)
        columns = [
            f"{row[name]:.3f}" for name in ("bootstrap", "jackknife", "has_interval", "wrong")
        ]
        print(f"| {figure} | {size} | {' | '.join(columns)} |", flush=True)
    pd.DataFrame(rows).round(4).to_csv(HERE / "results.csv", index=False)


if __name__ == "__main__":
    main()
