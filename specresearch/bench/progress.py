"""What a run shows while it decodes: speeds and the speedup so far."""

from collections.abc import Sequence

from specresearch.bench.rows import GroupRow
from specresearch.bench.side import RunSide
from specresearch.bench.speedups import speedup_figures
from specresearch.rows import BASELINE, METHOD, RequestRow


def figures_so_far(
    method: str, requests: Sequence[RequestRow], groups: Sequence[GroupRow]
) -> dict[str, str]:
    """Return figures by name, in words; empty before anything can be compared.

    Args:
        method: Name of the method, which a run of plain decoding lacks.
        requests: Those of groups that every side has decoded.
        groups: Likewise.
    """
    baseline = RunSide.of(BASELINE, requests, groups)
    plain_speed = baseline.tokens_per_second
    if plain_speed is None:
        return {}
    figures = {"plain tokens/s": f"{plain_speed:,.0f}"}
    fast = RunSide.of(METHOD, requests, groups)
    fast_speed = fast.tokens_per_second
    if fast_speed is None:
        return figures
    figures[f"{method} tokens/s"] = f"{fast_speed:,.0f}"
    speedups, _ = speedup_figures(baseline, fast)
    figures["speedup"] = f"{speedups['speedup']:.2f}"
    interval = speedups["speedup_ci95"]
    if interval:
        low, high = interval
        figures["speedup"] += f" (95% interval {low:.2f} to {high:.2f})"
    figures["acceptance length"] = f"{fast.counts.mean_acceptance_length:.2f}"
    return figures
