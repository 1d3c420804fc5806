"""From the rows of a load run to its figures. Pure: the same rows give the same figures, however often a run was resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.output_check import SCORE_DEFINITIONS
from specresearch.bench.side_comparison import SideComparison, StepTimes
from specresearch.loadtest.comparison import PairedSides, step_times
from specresearch.loadtest.side import (
    ANSWERED,
    LATENCIES,
    PERCENTS,
    RANKED,
    LoadSide,
    acceptance,
    acceptance_profile,
    latencies,
)
from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.window import NUM_BLOCKS, RULE, Limits
from specresearch.metrics import DEFINITIONS
from specresearch.rows import BASELINE, FIXED, METHOD
from specresearch.statistics import (
    INTERVALS,
    LEAST_UNITS,
    PERCENTILE_INTERVALS,
    SERIES_INTERVALS,
    Interval,
)

LOAD_DEFINITIONS = DEFINITIONS | {
    "window": RULE,
    "throughput": "generated tokens per second of the windows of all passes",
    "request_throughput": "requests finished per second of the windows",
    "goodput": "the part of request_throughput that met limits.ttft and limits.tpot",
    "speedup": "throughput of the method / throughput of plain decoding, in passes side by side. Open arrivals that both can "
    "serve make it 1, whatever the method does: look at the latencies then",
    "speedup_over_best": "throughput of the method / throughput of the better of plain decoding and best_fixed",
    "speedup_best_fixed, speedup_worst_fixed": "the highest and the lowest throughput of a fixed length / plain decoding's",
    "speedup_NAME, speedup_over_best_NAME": "speedup and speedup_over_best of a side of `variants`, by its name",
    "best_fixed": "the fixed draft length of `compare` with the highest throughput, known in hindsight only",
    "tpot_p99_ratio": "99th percentile of tpot, method / plain decoding; the other *_ratio likewise",
    "acceptance_p10": "10th percentile of a request's draft acceptance rate",
    "mean_draft_length": "draft tokens per target forward of a request, those without drafts included",
    "waiting_*, running_mean": "requests, over the time of the windows; waiting_max over whole passes",
    "schedule_share": "seconds of the scheduler / seconds of steps, prefill included",
    "overloaded": "requests came faster than they were answered: a pass was stopped with its queue growing; or, of open "
    f"arrivals, less than {ANSWERED:.0%} of what had come was answered by the last arrival, somebody waited all through the last "
    "third of the window, and more did in its second half than in its first",
    "too_short": "open arrivals of which a window is shorter than the median request takes once it is no longer in the queue: "
    "rates are those of a beginning, while prompts are read and the batch fills",
    "class_signature": "classes whose median tpot is better than plain decoding's and whose 99th percentile is worse, both with "
    "their whole interval",
    "class_unclear": "classes of which that cannot be said: too few requests for the interval of a 99th percentile, or an "
    "interval that holds 1",
    **SCORE_DEFINITIONS,
    "memory_start, memory_end, memory_peak": "bytes that this process held resident at the beginning of the first pass, at the "
    "end of the last one, and the most that was seen; passes.jsonl has them about once a second",
    "intervals": f"{INTERVALS}; none of fewer than {LEAST_UNITS} units. Acceptance: over requests, all repeats of one together. "
    f"Rates and their ratios: over stretches of time, a {NUM_BLOCKS}th of a window each or, where a pass has fewer requests to "
    "count, as many as these, with those of the compared side at the same place, those of all repeats at one place together; "
    f"{SERIES_INTERVALS}. Latencies: {PERCENTILE_INTERVALS}; over stretches of the workload likewise. ITL: none",
}


@dataclass(frozen=True)
class LoadFigures:
    """What results.json says of the rows.

    Attributes:
        sides: Figures by side; `side_intervals` has their intervals.
        acceptance: An `AcceptanceProfile` by side that drafts.
        step_times: A `StepTimes` by side.
        comparisons: A `SideComparison` by side that drafts.
        controller: The controllers' own traces by side.
        stopped: Which passes were given up, and why.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    side_intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    acceptance: dict[str, AcceptanceProfile] = field(default_factory=dict)
    step_times: dict[str, StepTimes] = field(default_factory=dict)
    comparisons: dict[str, SideComparison] = field(default_factory=dict)
    classes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    class_signature: list[str] = field(default_factory=list)
    class_unclear: list[str] = field(default_factory=list)
    timeline: dict[str, list[dict[str, float | None]]] = field(default_factory=dict)
    controller: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    stopped: str | None = None


def summarize_load(
    sides: Mapping[str, LoadSide], limits: Limits, max_running: int, *, reset: bool = True
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
    steps: dict[str, StepTimes] = {}
    timelines: dict[str, list[dict[str, float | None]]] = {}
    traces: dict[str, list[Mapping[str, float]]] = {}
    stops: list[str] = []
    for name, side in sides.items():
        figures[name], intervals[name] = side.figures(max_running)
        profile = acceptance_profile(side)
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
    main = METHOD if METHOD in sides else BASELINE
    summary: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name in (
        "throughput",
        "request_throughput",
        "goodput",
        *(f"{x}_p{p}" for x in LATENCIES for p in PERCENTS),
    ):
        for prefix, side in (("", main), ("baseline_", BASELINE)):
            summary[f"{prefix}{name}"] = figures.get(side, {}).get(name)
    fixed = sorted(
        (side for name, side in sides.items() if name.startswith(FIXED)),
        key=lambda side: side.throughput,
    )
    best, worst = (fixed[-1], fixed[0]) if fixed else (None, None)
    plain, method = sides.get(BASELINE), sides.get(METHOD)
    summary |= {"best_fixed": best and best.name, "worst_fixed": worst and worst.name}
    better = max(
        (side for side in (plain, best) if side), key=lambda side: side.throughput, default=None
    )
    pairs = {
        "speedup": (method, plain),
        "speedup_best_fixed": (best, plain),
        "speedup_worst_fixed": (worst, plain),
        "speedup_over_best": (method, better),
    }
    for name, side in sides.items():
        if name not in (BASELINE, METHOD) and not name.startswith(FIXED):
            pairs |= {f"speedup_{name}": (side, plain), f"speedup_over_best_{name}": (side, better)}
    for name, (own, other) in pairs.items():
        summary[name], intervals[name] = _throughput_ratio(own, other)
    for name in RANKED:
        ratios = [(None, None)] * len(PERCENTS)
        if method and plain:
            ratios = PairedSides(method, plain).percentile_ratios(name)
        for p, (ratio, between) in zip(PERCENTS, ratios, strict=True):
            summary[f"{name}_p{p}_ratio"], intervals[f"{name}_p{p}_ratio"] = ratio, between
    kept = (
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "acceptance_p10",
        "tokens_per_target_forward",
    )
    kept += (
        "mean_draft_length",
        "waiting_max",
        "waiting_mean",
        "running_mean",
        "num_requests",
        "num_unfinished",
    )
    kept += ("num_generated_tokens", "num_preemptions", "schedule_share", "overloaded")
    summary |= {name: figures.get(main, {}).get(name) for name in kept}
    summary |= {"baseline_overloaded": figures.get(BASELINE, {}).get("overloaded")}
    return summary, {name: between for name, between in intervals.items() if between is not None}


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
    sides: Mapping[str, LoadSide], limits: Limits
) -> dict[str, dict[str, dict[str, Any]]]:
    """Empty where requests are of one kind."""
    names = sorted({row.category for side in sides.values() for row in side.counted})
    if names in ([], [""]):
        return {}
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for category in names:
        table[category] = {}
        for name, side in sides.items():
            rows = [row for row in side.counted if row.category == category]
            if rows:
                good = sum(limits.met(row) for row in rows) / len(rows)
                own = {"num_requests": len(rows), "share_within_limits": good}
                table[category][name] = own | latencies(rows, 0)[0] | acceptance(rows)[0]
    return table


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
