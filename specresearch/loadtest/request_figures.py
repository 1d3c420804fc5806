"""Latencies and acceptance of a set of requests."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.bench.acceptance_figures import acceptance_figures
from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.loadtest.window import NUM_BLOCKS
from specresearch.metrics import Counts
from specresearch.rows import RequestRow
from specresearch.statistics import Percentile, percentile, percentile_of, ratio_of

LATENCIES = ("ttft", "tpot", "itl", "e2el")
RANKED = ("ttft", "tpot", "e2el")  # one value per request, so they have intervals
PERCENTS = (50, 90, 99)


def latencies(rows: Sequence[RequestRow], slow: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return percentiles of every latency, and their intervals.

    Args:
        slow: As in `statistics.spread`, since requests wait for one another.
    """
    figures: dict[str, Any] = {}
    for name in LATENCIES:
        values = _values(rows, name)
        figures |= {f"{name}_p{p}": percentile(values, p) for p in PERCENTS}
    stretches = stretches_of(rows)
    intervals: dict[str, Any] = {}
    for name in RANKED:
        percentiles = ranked(rows, name, stretches, slow)
        for p, estimate in zip(PERCENTS, percentiles, strict=True):
            intervals[f"{name}_p{p}"] = estimate and estimate.interval
    return figures, intervals


def ranked(
    rows: Sequence[RequestRow], name: str, stretches: Mapping[str, int], slow: int
) -> list[Percentile | None]:
    """Return the PERCENTS of a latency.

    Args:
        stretches: The stretch of the workload of each request, by its id.
    """
    rows = _with_latency(rows, name)
    units = np.array([stretches[row.id] for row in rows], dtype=int)
    return [percentile_of(_values(rows, name), units, NUM_BLOCKS, p, slow) for p in PERCENTS]


def stretches_of(rows: Sequence[RequestRow]) -> dict[str, int]:
    """Return which of NUM_BLOCKS successive parts of the workload each request belongs to.

    It is the same part on every side and in every pass.
    """
    first: dict[str, float] = {}
    for row in rows:
        first[row.id] = min(row.arrival, first.get(row.id, row.arrival))
    ordered = sorted(first, key=lambda id: first[id])
    return {id: rank * NUM_BLOCKS // len(ordered) for rank, id in enumerate(ordered)}


def acceptance(rows: Sequence[RequestRow]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how much was accepted, and its intervals over requests, repeats added up."""
    by_id: dict[str, list[Counts]] = defaultdict(list)
    for row in rows:
        by_id[row.id].append(row.counts)
    figures, intervals = acceptance_figures([Counts.total(counts) for counts in by_id.values()])
    total = Counts.total([row.counts for row in rows])
    rates = [row.counts.draft_acceptance_rate for row in rows if row.counts.num_draft_tokens]
    figures["acceptance_p10"] = percentile(rates, 10)
    figures["mean_draft_length"] = ratio_of(total.num_draft_tokens, total.num_target_forwards)
    return figures, intervals


def acceptance_in_all(counts: Counts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how much was accepted in sums that tell nothing of single requests: no intervals."""
    figures, intervals = acceptance_figures([counts])
    if not counts.num_draft_tokens:
        figures["draft_acceptance_rate"] = None  # the server does not say how much it drafted
    figures["acceptance_p10"] = None
    figures["mean_draft_length"] = None
    if counts.num_draft_tokens:
        figures["mean_draft_length"] = ratio_of(counts.num_draft_tokens, counts.num_target_forwards)
    return figures, dict.fromkeys(intervals)


def acceptance_profile(rows: Sequence[RequestRow]) -> AcceptanceProfile | None:
    """Return how acceptance varies between requests, or None if none of them drafted."""
    profile = AcceptanceProfile.of([row.counts for row in rows], [row.id for row in rows])
    if profile is None:
        return None
    # Unlike the profile's own rate, this interval is over requests without drafts as well.
    figures, intervals = acceptance(rows)
    name = "draft_acceptance_rate"
    return replace(profile, rate=Estimate.of(figures[name], intervals[name]))


def _with_latency(rows: Sequence[RequestRow], name: str) -> Sequence[RequestRow]:
    """Return the requests that have a latency: TPOT needs more than one token."""
    return [row for row in rows if row.itl] if name == "tpot" else rows


def _values(rows: Sequence[RequestRow], name: str) -> Float[np.ndarray, " n"]:
    """Return a latency of every request, or of every gap between tokens for ITL."""
    if name == "itl":
        return np.array([gap for row in rows for gap in row.itl], dtype=float)
    return np.array([getattr(row, name) for row in _with_latency(rows, name)], dtype=float)
