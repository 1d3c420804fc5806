"""From the rows of a load test to its figures: the same rows always give the same figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.side_comparison import MeanStepTimes, SideComparison
from specresearch.loadtest.comparison import PairedSides, step_times
from specresearch.loadtest.request_figures import (
    LATENCIES,
    PERCENTS,
    RANKED,
    acceptance,
    acceptance_profile,
    latencies,
)
from specresearch.loadtest.side import RATES, LoadSide
from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.window import LatencyLimits
from specresearch.rows import BASELINE, FIXED, METHOD
from specresearch.statistics import Interval

SIDE_FIGURES = (
    "draft_acceptance_rate",
    "mean_acceptance_length",
    "acceptance_p10",
    "tokens_per_target_forward",
    "mean_draft_length",
    "waiting_max",
    "waiting_mean",
    "running_mean",
    "num_requests",
    "num_unfinished",
    "num_failed",
    "num_generated_tokens",
    "num_preemptions",
    "schedule_share",
    "overloaded",
)  # of the main side, which the summary repeats


@dataclass(frozen=True)
class LoadFigures:
    """What results.json says of the rows.

    Attributes:
        sides: Figures by side; `side_intervals` has their intervals.
        acceptance: An `AcceptanceProfile` by side that drafts.
        step_times: A `MeanStepTimes` by side.
        comparisons: A `SideComparison` by side that drafts.
        classes: Figures by class of requests and side; empty if there is only one class.
        controller: The controllers' own traces by side.
        stopped: Which passes were stopped, and why.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    side_intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    acceptance: dict[str, AcceptanceProfile] = field(default_factory=dict)
    step_times: dict[str, MeanStepTimes] = field(default_factory=dict)
    comparisons: dict[str, SideComparison] = field(default_factory=dict)
    classes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    class_signature: list[str] = field(default_factory=list)
    class_unclear: list[str] = field(default_factory=list)
    timeline: dict[str, list[dict[str, float | None]]] = field(default_factory=dict)
    controller: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    stopped: str | None = None


def summarize_load(
    sides: Mapping[str, LoadSide],
    limits: LatencyLimits,
    max_running: int | None,
    *,
    reset: bool = True,
) -> LoadFigures:
    """Return the figures of the sides.

    Args:
        sides: By name. Sides that have finished no pass are left out.
        reset: Whether controllers are reset before every pass.
    """
    sides = {name: side for name, side in sides.items() if side.passes}
    figures: dict[str, dict[str, Any]] = {}
    intervals: dict[str, dict[str, Any]] = {}
    profiles: dict[str, AcceptanceProfile] = {}
    steps: dict[str, MeanStepTimes] = {}
    timelines: dict[str, list[dict[str, float | None]]] = {}
    traces: dict[str, list[Mapping[str, float]]] = {}
    stops: list[str] = []
    for name, side in sides.items():
        figures[name], intervals[name] = side.figures(max_running)
        profile = acceptance_profile(side.counted)
        if side.counts_of_passes is not None:
            profile = AcceptanceProfile.of_total(side.counts_of_passes)
        times = step_times(side)
        trace = _controller_rows(side, reset=reset)
        timelines[name] = PassSteps.timeline(list(side.steps.values()))
        profiles |= {name: profile} if profile else {}
        steps |= {name: times} if times else {}
        traces |= {name: trace} if trace else {}
        for row in side.passes.values():
            if row.stopped is not None:
                stops.append(f"{name}, repeat {row.key.repeat}: {row.stopped}")
    summary, ratio_intervals = _compare(sides, figures)
    classes = _by_class(sides, limits)
    comparisons: dict[str, SideComparison] = {}
    for name, side in sides.items():
        if name != BASELINE and BASELINE in sides:
            pair = PairedSides(side, sides[BASELINE])
            comparisons[name] = pair.comparison(max_running, list(classes))
    changes = comparisons[METHOD].classes if METHOD in comparisons else ()
    return LoadFigures(
        summary=summary,
        intervals=ratio_intervals,
        sides=figures,
        side_intervals=intervals,
        acceptance=profiles,
        step_times=steps,
        comparisons=comparisons,
        classes=classes,
        class_signature=[change.name for change in changes if change.has_signature],
        class_unclear=[change.name for change in changes if change.has_signature is None],
        timeline=timelines,
        controller=traces,
        stopped="; ".join(stops) or None,
    )


def _compare(
    sides: Mapping[str, LoadSide], figures: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the summary, and the intervals of its ratios."""
    main_figures = figures.get(METHOD if METHOD in sides else BASELINE, {})
    baseline_figures = figures.get(BASELINE, {})
    baseline, method = sides.get(BASELINE), sides.get(METHOD)
    percentiles = [f"{name}_p{p}" for name in LATENCIES for p in PERCENTS]
    summary: dict[str, Any] = {}
    for name in (*RATES, *percentiles):
        summary[name] = main_figures.get(name)
        summary[f"baseline_{name}"] = baseline_figures.get(name)
    fixed = [side for name, side in sides.items() if name.startswith(FIXED)]
    fixed.sort(key=lambda side: side.throughput)
    best, worst = (fixed[-1], fixed[0]) if fixed else (None, None)
    summary |= {"best_fixed": best and best.name, "worst_fixed": worst and worst.name}
    better = _fastest([side for side in (baseline, best) if side is not None])
    pairs = {
        "speedup": (method, baseline),
        "speedup_best_fixed": (best, baseline),
        "speedup_worst_fixed": (worst, baseline),
        "speedup_over_best": (method, better),
    }
    for name, side in sides.items():
        if name not in (BASELINE, METHOD) and not name.startswith(FIXED):
            pairs[f"speedup_{name}"] = (side, baseline)
            pairs[f"speedup_over_best_{name}"] = (side, better)
    ratios = {name: _throughput_ratio(own, other) for name, (own, other) in pairs.items()}
    for name in RANKED:
        of_percents = [(None, None)] * len(PERCENTS)
        if method and baseline:
            of_percents = PairedSides(method, baseline).percentile_ratios(name)
        for p, ratio in zip(PERCENTS, of_percents, strict=True):
            ratios[f"{name}_p{p}_ratio"] = ratio
    summary |= {name: ratio for name, (ratio, _) in ratios.items()}
    summary |= {name: main_figures.get(name) for name in SIDE_FIGURES}
    summary["baseline_overloaded"] = baseline_figures.get("overloaded")
    return summary, {name: bounds for name, (_, bounds) in ratios.items() if bounds is not None}


def _fastest(sides: Sequence[LoadSide]) -> LoadSide | None:
    return max(sides, key=lambda side: side.throughput, default=None)


def _throughput_ratio(
    own: LoadSide | None, other: LoadSide | None
) -> tuple[float | None, Interval | None]:
    if own is None or other is None:
        return None, None
    if own is other:
        return 1.0, None
    ratio = PairedSides(own, other).throughput_ratio()
    return (None, None) if ratio is None else (ratio.value, ratio.interval)


def _by_class(
    sides: Mapping[str, LoadSide], limits: LatencyLimits
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return figures by class and side; empty if requests have no classes."""
    names = sorted({row.category for side in sides.values() for row in side.counted})
    if names in ([], [""]):
        return {}
    classes: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    for category, by_side in classes.items():
        for name, side in sides.items():
            rows = [row for row in side.counted if row.category == category]
            if rows:
                share = sum(map(limits.are_met, rows)) / len(rows)
                counts = {"num_requests": len(rows), "share_within_limits": share}
                by_side[name] = counts | latencies(rows, 0)[0] | acceptance(rows)[0]
    return classes


def _controller_rows(side: LoadSide, *, reset: bool) -> list[Mapping[str, float]]:
    """Return the controller's own trace of every pass.

    A controller that is not reset repeats the trace of earlier passes, which is left out, unless it
    started anew because the run was resumed.
    """
    rows: list[Mapping[str, float]] = []
    last = 0.0
    for repeat, pass_row in side.passes.items():
        newest = max((entry["step"] for entry in pass_row.trace), default=0.0)
        for entry in pass_row.trace:
            if entry["step"] > last or newest <= last:
                rows.append({"repeat": float(repeat)} | dict(entry))
        if not reset and pass_row.trace:
            last = newest
    return rows
