"""Which drafts are worth their time: the likeliest to survive, as long as throughput rises."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

Seconds = Callable[[Int[np.ndarray, " W"], Float[np.ndarray, "W M"]], Float[np.ndarray, "W M"]]
Affordable = Callable[[Int[np.ndarray, " R"]], float]


@dataclass(frozen=True)
class Rows:
    """Which rows may draft, and what to expect of them.

    If row r may draft, it does so with probability s_r, and its draft i then survives with
    probability a_r^i.

    Attributes:
        acceptance: a_r, between 0 and 1; of drafts with a limit of 1, any number of tokens.
        supply: s_r, above 0. What is not drafted takes no time.
        limits: The most drafts of each row; 0 for rows with a given number.
        given: Drafts of rows whose number is given; 0 for all others.
    """

    acceptance: Float[np.ndarray, " R"]
    supply: Float[np.ndarray, " R"]
    limits: Int[np.ndarray, " R"]
    given: Int[np.ndarray, " R"]

    def accepted(self, lengths: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Return the expected accepted drafts of each row with drafts of these lengths."""
        longest = np.arange(1, int(lengths.max(initial=0)) + 1)
        survival = self.acceptance[:, None] ** longest  # [R, K]
        return self.supply * (survival * (longest <= lengths[:, None])).sum(axis=1)


def allocate(
    rows: Rows,
    seconds: Seconds,
    affordable: Affordable | None = None,
    prefill: Float[np.ndarray, " R"] | None = None,
) -> Int[np.ndarray, " R"]:
    """Return the drafts of each row that maximize expected tokens per second.

    Without the optional arguments this is exact: for each length of the longest draft, the best n
    drafts are the n likeliest to survive. Survival falls with the position, so these are prefixes;
    supply scales the gain and the cost of a draft alike. All n are compared at once.

    Args:
        seconds: Expected time of steps whose longest draft is `longest[w]` and which have
            `num_drafts[w, m]` drafts in all. It never falls in either and is linear in the second.
        affordable: The longest that a step of these lengths may take; it must not fall with them.
            The best affordable n is taken.
        prefill: Seconds of lazy prefill before a row's first draft, for each token that the row
            has left. Rows that gain less than that get no drafts, one round after the other; if
            only all rows together lose, those with the most prefill get none.
    """
    seconds = _expected(seconds, rows.supply[(rows.limits > 0) | (rows.given > 0)])
    while True:
        lengths = _fastest(rows, seconds, affordable)
        loses = None if prefill is None else _loses(rows, seconds, prefill, lengths)
        if loses is None or not loses.any():
            return lengths
        rows = replace(rows, limits=np.where(loses, 0, rows.limits))


def _expected(seconds: Seconds, supply: Float[np.ndarray, " r"]) -> Seconds:
    """Return the expected time, given that in some steps none of the rows drafts."""
    any_drafts = 1 - float((1 - supply).prod())
    if any_drafts in (0, 1):
        return seconds
    plain = float(seconds(np.zeros(1, dtype=int), np.zeros((1, 1)))[0, 0])
    without = (1 - any_drafts) * plain
    return lambda longest, num_drafts: (
        any_drafts * seconds(longest, num_drafts / any_drafts) + without
    )


def _loses(
    rows: Rows, seconds: Seconds, prefill: Float[np.ndarray, " R"], lengths: Int[np.ndarray, " R"]
) -> Bool[np.ndarray, " R"]:
    """Return the rows whose drafts are worth less than those drafts and the prefill cost.

    If there is none and the step is still slower than without drafts, return the rows with the most
    prefill.
    """
    drafts = lengths > rows.given
    if not (prefill * drafts).any():
        return np.zeros_like(drafts)
    gained, time, per_draft = _step(rows, seconds, lengths)
    plain_gained, plain_time, _ = _step(rows, seconds, rows.given)
    tokens = len(lengths) + gained.sum()
    plain_tokens = len(lengths) + plain_gained.sum()
    spent = prefill * (1 + gained) * drafts  # in this step
    time += float(spent.sum())
    cost = per_draft * rows.supply * lengths + spent
    loses = (spent > 0) & (gained * time / tokens < cost)
    if not loses.any() and tokens * plain_time < plain_tokens * time:
        return drafts & (spent >= spent[drafts].mean())
    return loses


def _step(
    rows: Rows, seconds: Seconds, lengths: Int[np.ndarray, " R"]
) -> tuple[Float[np.ndarray, " R"], float, float]:
    """Return the accepted drafts of each row, the step's seconds, and those of one more draft."""
    number = float(rows.supply @ lengths)
    numbers = np.array([[number, number + 1]])
    time, longer = seconds(lengths.max(keepdims=True), numbers)[0].tolist()
    return rows.accepted(lengths), time, longer - time


def _fastest(rows: Rows, seconds: Seconds, affordable: Affordable | None) -> Int[np.ndarray, " R"]:
    """Return the best lengths if no row needs a lazy prefill."""
    limits, given, supply = rows.limits, rows.given, rows.supply
    width = int(max(limits.max(), given.max()))
    if width == 0:
        return np.zeros_like(limits)
    position = np.arange(1, width + 1)
    survival = rows.acceptance[:, None] ** position  # [R, K]
    is_given = position <= given[:, None]
    is_open = position <= limits[:, None]
    order = np.argsort(np.where(is_open, -survival, 1.0), axis=None, kind="stable")
    order = order[: int(is_open.sum())]  # candidates, the likeliest first
    row, column = np.divmod(order, width)
    longest = np.arange(int(given.max()), width + 1)  # [W]
    fits = position[column] <= longest[:, None]  # [W, M]
    gained, number = np.zeros((2, len(longest), len(order) + 1))
    weight = fits * supply[row]
    np.cumsum(survival.flat[order] * weight, axis=1, out=gained[:, 1:])
    np.cumsum(weight, axis=1, out=number[:, 1:])
    certain = float((survival * supply[:, None])[is_given].sum())
    tokens = len(limits) + certain + gained  # the target adds one token to every row
    time = seconds(longest, number + float(given @ supply))
    rate = tokens / time
    while True:
        w, m = np.unravel_index(int(rate.argmax()), rate.shape)
        chosen = row[:m][fits[w, :m]]
        lengths = given + np.bincount(chosen, minlength=len(limits))
        limit = np.inf if affordable is None else affordable(lengths)
        if number[w, m] == 0 or time[w, m] <= limit:
            return lengths
        rate[(time > limit) & (number > 0)] = 0.0
