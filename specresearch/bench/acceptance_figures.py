"""How much was accepted, with intervals over prompts or requests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.metrics import Counts
from specresearch.statistics import SHARE, Interval, Statistic, interval_of, value_of

TOTALS = (
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_generated_tokens",
    "num_target_forwards",
)
JUDGED = (*TOTALS, "num_judged_tokens")


def acceptance_figures(units: Sequence[Counts]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return acceptance figures, and their intervals over independent units."""
    rows = [[getattr(counts, name) for name in JUDGED] for counts in units]
    totals = np.array(rows, dtype=float).reshape(-1, len(JUDGED))
    values: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, statistic, bounds in _statistics(totals):
        values[name] = value_of(statistic, totals)
        intervals[name] = interval_of(totals, statistic, bounds)
    return values, intervals


def _statistics(totals: Float[np.ndarray, "n 6"]) -> list[tuple[str, Statistic, Interval]]:
    """Return each figure with its bounds: without any accepted draft, and with all accepted.

    The upper bound is that of the unit with the most drafts, since units may differ.
    """
    num_drafts, num_draft_tokens, *_, num_forwards, num_judged = totals.T
    longest = 1 + _highest_ratio(num_judged, num_drafts)
    most = 1 + _highest_ratio(num_draft_tokens, num_forwards)
    return [
        ("mean_acceptance_length", lambda t: 1 + t[..., 2] / t[..., 0], (1.0, longest)),
        ("draft_acceptance_rate", lambda t: t[..., 2] / t[..., 5], SHARE),
        ("tokens_per_target_forward", lambda t: t[..., 3] / t[..., 4], (1.0, most)),
    ]


def _highest_ratio(parts: Float[np.ndarray, " n"], wholes: Float[np.ndarray, " n"]) -> float:
    ratios = parts[wholes > 0] / wholes[wholes > 0]
    return float(ratios.max(initial=0.0))
