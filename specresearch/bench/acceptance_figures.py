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
    """Return each figure with its bounds: without any accepted draft, and with all accepted."""
    num_drafts, num_draft_tokens, *_, num_forwards, num_judged = totals.sum(0)
    longest = 1 + (num_judged / num_drafts if num_drafts else 0.0)
    most = 1 + (num_draft_tokens / num_forwards if num_forwards else 0.0)
    return [
        ("mean_acceptance_length", lambda t: 1 + t[..., 2] / t[..., 0], (1.0, longest)),
        ("draft_acceptance_rate", lambda t: t[..., 2] / t[..., 5], SHARE),
        ("tokens_per_target_forward", lambda t: t[..., 3] / t[..., 4], (1.0, most)),
    ]
