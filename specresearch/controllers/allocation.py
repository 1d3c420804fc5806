"""Which drafts are worth their time: those of highest survival probability, as long as throughput rises."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

Seconds = Callable[[Int[np.ndarray, " W"], Float[np.ndarray, "W M"]], Float[np.ndarray, "W M"]]
Affordable = Callable[[Int[np.ndarray, " R"]], float]


@dataclass(frozen=True)
class Rows:
    """Who may draft, and what is to be expected of it: row r drafts with chance s_r if it may, and its draft i then survives with
    a_r^i.

    acceptance: a_r, between 0 and 1. supply: s_r, above 0; what is not drafted takes no time. limits: the most for each row.
    given: drafts of rows that have no choice, 0 for all others; the limit of such rows is 0.
    """

    acceptance: Float[np.ndarray, " R"]
    supply: Float[np.ndarray, " R"]
    limits: Int[np.ndarray, " R"]
    given: Int[np.ndarray, " R"]

    def accepted(self, lengths: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Expected accepted drafts of each row, if it may draft so many."""
        return (
            self.supply * self.acceptance * (1 - self.acceptance**lengths) / (1 - self.acceptance)
        )


def allocate(
    rows: Rows,
    seconds: Seconds,
    affordable: Affordable | None = None,
    reading: Float[np.ndarray, " R"] | None = None,
) -> Int[np.ndarray, " R"]:
    """Drafts for each row that make expected tokens per second largest.

    seconds(longest, num_drafts): of a step with longest drafts of `longest[w]` and `num_drafts[w, m]` drafts in all, as expected;
    never falling in either and linear in the second. affordable(lengths): the most seconds that a step of these lengths may
    take; shorter drafts must not be allowed more. reading: seconds that a row's drafter has to read before the first draft, for
    every token that the row is still to get.

    Exact without the last two: for every length of the longest draft the best n drafts are the n likeliest to survive, and
    since a row's survival falls with position these are prefixes; supply scales what a draft gains and what it costs alike.
    The n are compared all at once. With `affordable`, the best of those numbers n that can be afforded. With `reading`, rows
    which gain less than that takes get none, until there is no such row; where all together would, those that have most to
    read.
    """
    seconds = _expected(seconds, rows.supply[(rows.limits > 0) | (rows.given > 0)])
    while True:
        lengths = _fastest(rows, seconds, affordable)
        loses = None if reading is None else _loses(rows, seconds, reading, lengths)
        if loses is None or not loses.any():
            return lengths
        rows = replace(rows, limits=np.where(loses, 0, rows.limits))


def _expected(seconds: Seconds, supply: Float[np.ndarray, " r"]) -> Seconds:
    """Of a step in which rows of this supply may draft: without any draft if none of them does."""
    some = 1 - float((1 - supply).prod())
    if some in (0, 1):
        return seconds
    none = (1 - some) * float(seconds(np.zeros(1, dtype=int), np.zeros((1, 1)))[0, 0])
    return lambda longest, num_drafts: some * seconds(longest, num_drafts / some) + none


def _loses(
    rows: Rows, seconds: Seconds, reading: Float[np.ndarray, " R"], lengths: Int[np.ndarray, " R"]
) -> Bool[np.ndarray, " R"]:
    """Rows that had better not draft: at this rate their drafts are worth less than those and the reading take. If there is none,
    and the step is slower than without any drafts for all that, those that have most to read."""
    chosen = lengths > rows.given
    if not (reading * chosen).any():
        return np.zeros_like(chosen)
    gained, time, each = _step(rows, seconds, lengths)
    gained_without, time_without, _ = _step(rows, seconds, rows.given)
    tokens, tokens_without = len(lengths) + gained.sum(), len(lengths) + gained_without.sum()
    spent = reading * (1 + gained) * chosen  # in this step
    time += float(spent.sum())
    loses = (spent > 0) & (gained * time / tokens < each * rows.supply * lengths + spent)
    if not loses.any() and tokens * time_without < tokens_without * time:
        return chosen & (spent >= spent[chosen].mean())
    return loses


def _step(
    rows: Rows, seconds: Seconds, lengths: Int[np.ndarray, " R"]
) -> tuple[Float[np.ndarray, " R"], float, float]:
    """Accepted drafts of each row, and the seconds of a step and of one draft more."""
    number = float(rows.supply @ lengths)
    time, more = seconds(lengths.max(keepdims=True), np.array([[number, number + 1]]))[0].tolist()
    return rows.accepted(lengths), time, more - time


def _fastest(rows: Rows, seconds: Seconds, affordable: Affordable | None) -> Int[np.ndarray, " R"]:
    """Without `reading`."""
    limits, given, supply = rows.limits, rows.given, rows.supply
    most = int(max(limits.max(), given.max()))
    if most == 0:
        return np.zeros_like(limits)
    position = np.arange(1, most + 1)
    survival = rows.acceptance[:, None] ** position  # [R, K]
    is_given, is_open = position <= given[:, None], position <= limits[:, None]
    order = np.argsort(np.where(is_open, -survival, 1.0), axis=None, kind="stable")[
        : int(is_open.sum())
    ]
    longest = np.arange(int(given.max()), most + 1)  # [W]
    fits = position[order % most] <= longest[:, None]  # [W, M]
    gained, number = np.zeros((2, len(longest), len(order) + 1))
    weight = fits * supply[order // most]
    np.cumsum(survival.flat[order] * weight, axis=1, out=gained[:, 1:])
    np.cumsum(weight, axis=1, out=number[:, 1:])
    certain = float((survival * supply[:, None])[is_given].sum())
    tokens = len(limits) + certain + gained  # one of every row is the target's own
    time = seconds(longest, number + float(given @ supply))
    rate = tokens / time
    while True:
        w, m = np.unravel_index(int(rate.argmax()), rate.shape)
        chosen = order[:m][fits[w, :m]]
        lengths = given + np.bincount(chosen // most, minlength=len(limits))
        limit = np.inf if affordable is None else affordable(lengths)
        if number[w, m] == 0 or time[w, m] <= limit:
            return lengths
        rate[(time > limit) & (number > 0)] = 0.0
