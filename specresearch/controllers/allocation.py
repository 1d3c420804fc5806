"""Which drafts are worth their time: those of highest survival probability, as long as throughput rises."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

Seconds = Callable[[Int[np.ndarray, " W"], Float[np.ndarray, "W M"]], Float[np.ndarray, "W M"]]
Affordable = Callable[[Int[np.ndarray, " R"]], float]


def allocate(
    acceptance: Float[np.ndarray, " R"],
    limits: Int[np.ndarray, " R"],
    given: Int[np.ndarray, " R"],
    seconds: Seconds,
    affordable: Affordable = lambda lengths: np.inf,
) -> Int[np.ndarray, " R"]:
    """Drafts for each row that make expected tokens per second largest, where row r's draft i survives with a_r^i.

    acceptance: a_r, between 0 and 1. limits: the most that can be chosen. given: drafts of rows that have no choice, 0 for all
    others; the limit of such rows is 0. seconds(longest, num_drafts): of a step with longest drafts of `longest[w]` and
    `num_drafts[w, m]` drafts in all, not falling in either and linear in the second. affordable(lengths): the most seconds
    that a step of these lengths may take; shorter drafts must not be allowed more.

    Exact without `affordable`: for every length of the longest draft the best n drafts are the n likeliest to survive, and since
    a row's survival falls with position these are prefixes. The n are compared all at once. With it, the best of those numbers n
    that can be afforded.
    """
    most = int(max(limits.max(), given.max()))
    if most == 0:
        return np.zeros_like(limits)
    position = np.arange(1, most + 1)
    survival = acceptance[:, None] ** position  # [R, K]
    is_given, is_open = position <= given[:, None], position <= limits[:, None]
    order = np.argsort(np.where(is_open, -survival, 1.0), axis=None, kind="stable")[: int(is_open.sum())]
    longest = np.arange(int(given.max()), most + 1)  # [W]
    fits = position[order % most] <= longest[:, None]  # [W, M]
    gained, number = np.zeros((2, len(longest), len(order) + 1))
    np.cumsum(survival.flat[order] * fits, axis=1, out=gained[:, 1:])
    np.cumsum(fits, axis=1, out=number[:, 1:])
    tokens = len(limits) + float(survival[is_given].sum()) + gained  # one of every row is the target's own
    time = seconds(longest, number + int(given.sum()))
    rate = tokens / time
    while True:
        w, m = np.unravel_index(int(rate.argmax()), rate.shape)
        chosen = order[:m][fits[w, :m]]
        lengths = given + np.bincount(chosen // most, minlength=len(limits))
        limit = affordable(lengths)
        if number[w, m] == 0 or time[w, m] <= limit:
            return lengths
        rate[(time > limit) & (number > 0)] = 0.0
