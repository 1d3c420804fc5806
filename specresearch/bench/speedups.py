"""Speedups of the method over the baseline, and what limits them."""

from typing import Any

import numpy as np

from specresearch.bench.side import RunSide
from specresearch.statistics import Statistic, ratio_of, spread, value_of

SPEEDUPS = {
    "speedup": "wall",
    "decode_speedup": "decode",
    "draft_prefill_speedup": "decode_and_draft_prefill",
}  # by the time that is compared


def speedup_figures(baseline: RunSide, method: RunSide) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the figures, and the degrees of freedom of the speedups' intervals.

    Times are compared per generated token. With equal token counts this compares times.
    """
    names = (*SPEEDUPS.values(), "num_generated_tokens")
    plain, fast = baseline.by_group(*names), method.by_group(*names)
    shared = sorted(plain.keys() & fast.keys())
    totals = np.array([plain[group] + fast[group] for group in shared]).reshape(-1, 2 * len(names))
    has_equal_counts = all(plain[group][-1] == fast[group][-1] for group in shared)
    figures: dict[str, Any] = {}
    freedom: dict[str, float] = {}
    for column, name in enumerate(SPEEDUPS):
        statistic = _speedup(column, len(names))
        figures[name] = value_of(statistic, totals)
        error = spread(totals, statistic)
        figures[f"{name}_ci95"] = error and error.interval()
        if error:
            freedom[name] = error.freedom
    basis = "wall time per generated token (token counts differ)"
    figures["speedup_basis"] = "wall time, equal token counts" if has_equal_counts else basis
    num_plain, num_fast = (side.sum("num_generated_tokens") for side in (baseline, method))
    ideal = quotient(
        ratio_of(baseline.sum("verify"), num_plain),
        ratio_of(method.sum("propose") + method.sum("verify"), num_fast),
    )
    figures |= {
        "ideal_speedup": ideal,
        "efficiency": quotient(figures["decode_speedup"], ideal),
    }
    return figures, freedom


def cost_ratio(baseline: RunSide, method: RunSide) -> float | None:
    """Return the cost of a draft token relative to a step of plain decoding."""
    return quotient(
        ratio_of(method.sum("propose"), method.sum("num_draft_passes")),
        ratio_of(baseline.sum("verify"), baseline.sum("num_steps")),
    )


def quotient(part: float | None, whole: float | None) -> float | None:
    """Return part / whole, or None if one is unknown or the whole is 0."""
    return part / whole if part is not None and whole else None


def _speedup(time: int, num: int) -> Statistic:
    """Return the ratio of seconds per token.

    Args:
        time: Column of the time.
        num: Columns of each side; tokens come last.
    """
    return lambda t: (t[..., time] / t[..., num - 1]) / (t[..., num + time] / t[..., -1])
