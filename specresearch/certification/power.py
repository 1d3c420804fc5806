"""Power of the chi-square test: which deviations a sample detects, and how large it must be."""

import math
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from specresearch.certification.goodness_of_fit import count_pooled, null_distribution

GROWTH = 1.03  # factor by which a sample grows until it is large enough


@cache
def noncentrality(num_cells: int, alpha: float, power: float, allowed: float = 0.0) -> float:
    """Return the noncentrality that a test at level `alpha` rejects with probability `power`.

    Args:
        allowed: noncentrality that the null hypothesis allows.
    """
    freedom = max(num_cells - 1, 1)
    critical = null_distribution(freedom, allowed).isf(alpha)
    shortfall = optimize.root_scalar(
        lambda n: stats.ncx2.sf(critical, freedom, n) - power, bracket=(1e-6, 1e5)
    )
    return float(shortfall.root)


def visible_tv(
    num_samples: int,
    probs: Float[np.ndarray, " K"],
    alpha: float,
    power: float,
    rounding: float = 0.0,
) -> float:
    """Return the smallest total variation that the test detects, in whatever cells it lies.

    A deviation of total variation t between the tested cells has noncentrality n (2 t)^2 or more.
    A deviation within the pooled cells is invisible, so their probability is added.
    """
    num_pooled = count_pooled(probs * num_samples)
    num_cells = len(probs) - num_pooled + (num_pooled > 0)
    hidden = float(np.sort(probs)[:num_pooled].sum())
    needed = noncentrality(num_cells, alpha, power, num_samples * rounding**2)
    return hidden + 0.5 * math.sqrt(needed / num_samples)


def samples_needed(
    probs: Float[np.ndarray, " K"], tv: float, alpha: float, power: float, rounding: float = 0.0
) -> int:
    """Return how many samples detect a total variation of `tv`, in whatever cells it lies.

    Raises:
        ValueError: rounding alone may cause nearly that deviation.
    """
    if rounding > tv:
        raise ValueError(
            f"rounding alone may move the outputs by {rounding:.2g} (root of the chi-square "
            f"divergence), so a total variation of {tv:g} cannot be told from it; raise "
            "visible_tv or the trial's coarseness"
        )
    num_samples = math.ceil(noncentrality(2, alpha, power) / (2 * tv) ** 2)
    while visible_tv(num_samples, probs, alpha, power, rounding) > tv:
        num_samples = math.ceil(num_samples * GROWTH)
    return num_samples
