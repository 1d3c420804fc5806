"""How much was accepted, over units that are resampled as a whole: prompts or requests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specresearch.bench.stats import Statistic, bootstrap_interval, value_of
from specresearch.metrics import Counts

TOTALS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_generated_tokens", "num_target_forwards")
STATISTICS: Mapping[str, Statistic] = {
    "mean_acceptance_length": lambda t: 1 + t[..., 2] / t[..., 0],
    "draft_acceptance_rate": lambda t: t[..., 2] / t[..., 1],
    "tokens_per_target_forward": lambda t: t[..., 3] / t[..., 4],
}


def acceptance_figures(units: Sequence[Counts], seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values and intervals of STATISTICS."""
    totals = np.array([[getattr(counts, name) for name in TOTALS] for counts in units], dtype=float)
    totals = totals.reshape(-1, len(TOTALS))
    values = {name: value_of(statistic, totals) for name, statistic in STATISTICS.items()}
    intervals = {name: bootstrap_interval(totals, statistic, seed) for name, statistic in STATISTICS.items()}
    return values, intervals
