"""What several estimates of one ratio say together."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

import numpy as np
from scipy import stats

from specresearch.bench.estimate import Estimate
from specresearch.statistics import LEAST_UNITS, LEVEL

LEAST_FREEDOM = LEAST_UNITS - 2  # assumed where degrees of freedom are unknown


def simultaneous(estimate: Estimate, num: int) -> Estimate:
    """Return a ratio with an interval that holds together with `num` - 1 others (Bonferroni)."""
    if estimate.low is None or estimate.high is None or num == 1 or estimate.low <= 0:
        return estimate
    freedom = LEAST_FREEDOM if estimate.freedom is None else estimate.freedom
    one, all_of_them = stats.t.isf([(1 - LEVEL) / 2, (1 - LEVEL) / 2 / num], freedom)
    power = float(all_of_them / one)
    low = estimate.value * (estimate.low / estimate.value) ** power
    high = estimate.value * (estimate.high / estimate.value) ** power
    return replace(estimate, low=low, high=high)


def pooled(estimates: Sequence[Estimate], weights: Sequence[int], *, same_units: bool) -> Estimate:
    """Return the weighted geometric mean of estimates of one ratio.

    It has an interval if all of them have one.

    Args:
        same_units: Whether they rest on the same prompts, so their errors do not average out.
    """
    shares = np.array(weights, dtype=float) / sum(weights)
    if any(estimate.value <= 0 for estimate in estimates):
        return Estimate(float(shares @ [estimate.value for estimate in estimates]))
    value = exp(float(shares @ [log(estimate.value) for estimate in estimates]))
    down, up = [], []
    for share, estimate in zip(shares, estimates, strict=True):
        if estimate.low is None or estimate.high is None or estimate.low <= 0:
            return Estimate(value)
        down.append(share * abs(log(estimate.value / estimate.low)))
        up.append(share * abs(log(estimate.value / estimate.high)))
    reach_down = sum(down) if same_units else hypot(*down)
    reach_up = sum(up) if same_units else hypot(*up)
    freedoms = [estimate.freedom for estimate in estimates if estimate.freedom is not None]
    least = min(freedoms) if len(freedoms) == len(estimates) else None
    return Estimate(value, value * exp(-reach_down), value * exp(reach_up), least)
