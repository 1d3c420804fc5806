"""Compare the project's intervals of a ratio with both bootstraps of scipy.

python -m experiments.intervals.bca --runs 1000
"""

import argparse
import time
import warnings

import numpy as np

from experiments.intervals.coverage import POPULATIONS, SIZES, Rng, bootstrap, ratio
from specresearch.statistics import Interval, interval_of

NAMES = ("speedup, lognormal 0.45", "speedup, lognormal 0.8", "acceptance, beta(6, 0.8)")
METHODS = ("percentile", "BCa", "jackknife")


def interval(totals: np.ndarray, bounds: Interval, method: str, rng: Rng) -> Interval:
    if method != "jackknife":
        return bootstrap(totals, ratio, rng, method)
    found = interval_of(totals, ratio, bounds)
    assert found is not None
    return found


def main() -> None:
    """Print coverage, median width and mean milliseconds of each method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    num_runs = parser.parse_args().runs
    warnings.simplefilter("ignore")  # of BCa, where all resamples are equal
    print("population,n,method,coverage,width,milliseconds")
    for name in NAMES:
        for num in SIZES:
            rng = np.random.default_rng(num)
            samples = [POPULATIONS[name](rng, num) for _ in range(num_runs)]
            for method in METHODS:
                start, held, widths = time.perf_counter(), 0, []
                for totals, true, bounds in samples:
                    low, high = interval(totals, bounds, method, rng)
                    held += low <= true <= high
                    widths.append(high - low)
                milliseconds = 1e3 * (time.perf_counter() - start) / num_runs
                print(
                    f'"{name}",{num},{method},{held / num_runs:.3f},{np.median(widths):.3f},'
                    f"{milliseconds:.2f}"
                )


if __name__ == "__main__":
    main()
