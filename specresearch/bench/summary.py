"""From a run's rows to its figures.

This is pure: the same rows give the same figures, however often the run was resumed.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specresearch.bench.acceptance_figures import TOTALS, acceptance_figures
from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.memory_use import MEMORY_DEFINITIONS
from specresearch.bench.output_check import SCORE_DEFINITIONS
from specresearch.bench.outputs import OutputComparison
from specresearch.bench.rows import GroupRow
from specresearch.bench.side import RunSide
from specresearch.bench.side_comparison import MeanStepTimes, SideComparison
from specresearch.bench.speedups import SPEEDUPS, cost_ratio, speedup_figures
from specresearch.metrics import DEFINITIONS, Counts
from specresearch.rows import BASELINE, METHOD, RequestRow
from specresearch.statistics import (
    INTERVALS,
    LEAST_UNITS,
    POSITIVE,
    SHARE,
    Histogram,
    Interval,
    Statistic,
    interval_of,
    percentile,
)

SHIFT = ("output_tv", "output_kl", "refused_rate")
RUN_DEFINITIONS = DEFINITIONS | {
    "tokens_per_second": "generated tokens / wall time of generate(), prefill included",
    "decode_tokens_per_second": "generated tokens / (wall time - prefill time)",
    "fraction_*": "share of the wall time of generate(); host is what no named part accounts for",
    "*_ci95": f"{INTERVALS}. Speedups: over groups of batch_size prompts, each with its own "
    "baseline; acceptance: over prompts; repeats of a prompt are added up first; null for fewer "
    f"than {LEAST_UNITS} groups or prompts",
    "memory": "warm: a request may use what the method learned from earlier ones, since the start "
    "of the repeat; cold: it may not; null: the method learns nothing that it could keep",
    "outputs_equal": "every greedy output of the method equals the baseline's token for token; "
    "null for sampled runs",
    "num_outputs_unlike": "later turns of conversations in which an earlier reply differs already: "
    "they answer other prompts, so they are not compared",
    **SCORE_DEFINITIONS,
    **MEMORY_DEFINITIONS,
    "num_prompts_cut": "prompts shortened to fit dataset.max_prompt_tokens and target.max_len - "
    "sampling.max_new_tokens",
}


@dataclass(frozen=True)
class Figures:
    """The figures of results.json.

    Attributes:
        summary: Flat, figures only.
        intervals: The summary's figures that have an interval, with it.
        sides: Figures by side; `side_intervals` has their intervals.
        acceptance: An `AcceptanceProfile` by side that drafts.
        step_times: A `MeanStepTimes` by side.
        comparisons: A `SideComparison` by side that drafts.
        per_position: One entry per draft depth.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    side_intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    acceptance: dict[str, AcceptanceProfile] = field(default_factory=dict)
    step_times: dict[str, MeanStepTimes] = field(default_factory=dict)
    comparisons: dict[str, SideComparison] = field(default_factory=dict)
    per_position: list[dict[str, Any]] = field(default_factory=list)
    histogram: dict[str, Any] = field(default_factory=dict)
    by_category: dict[str, dict[str, Any]] = field(default_factory=dict)


def summarize(
    requests: Sequence[RequestRow], groups: Sequence[GroupRow], outputs: OutputComparison | None
) -> Figures:
    """Return the figures of what every side has decoded.

    Args:
        outputs: The comparison of the two sides' outputs. None if there is no method; figures that
            need one are then None.
    """
    baseline, method = (RunSide.of(side, requests, groups) for side in (BASELINE, METHOD))
    sides = {BASELINE: baseline} if outputs is None else {BASELINE: baseline, METHOD: method}
    summary, freedom = _summary(baseline, method, outputs)
    step_times, side_intervals = {}, {}
    for name, side in sides.items():
        estimates = side.latency_estimates()
        side_intervals[name] = {key: latency.interval for key, latency in estimates.items()}
        times = side.step_times()
        if times:
            step_times[name] = times
    comparisons = {}
    if outputs is not None:
        comparisons[METHOD] = SideComparison(
            gain=Estimate.of(summary["speedup"], summary["speedup_ci95"], freedom.get("speedup")),
            decode_speedup=Estimate.of(summary["decode_speedup"], summary["decode_speedup_ci95"]),
            ideal_speedup=summary["ideal_speedup"],
        )
    profile = method.acceptance_profile()
    return Figures(
        summary=summary,
        intervals=_intervals(summary, freedom),
        sides={name: side.figures() for name, side in sides.items()},
        side_intervals=side_intervals,
        acceptance={METHOD: profile} if profile else {},
        step_times=step_times,
        comparisons=comparisons,
        per_position=_per_position(method.counts),
        histogram=_histogram(method),
        by_category=_by_category(baseline, method),
    )


def _summary(
    baseline: RunSide, method: RunSide, outputs: OutputComparison | None
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the summary, and the degrees of freedom of the speedups' intervals."""
    main = baseline if outputs is None else method
    names = ["speedup", "speedup_ci95", "speedup_basis"]
    for name in list(SPEEDUPS)[1:]:
        names += [name, f"{name}_ci95"]
    summary: dict[str, Any] = dict.fromkeys([*names, "ideal_speedup", "efficiency"])
    freedom: dict[str, float] = {}
    if outputs is not None:
        speedups, freedom = speedup_figures(baseline, method)
        summary |= speedups
    summary |= {
        "tokens_per_second": main.tokens_per_second,
        "baseline_tokens_per_second": baseline.tokens_per_second,
        "decode_tokens_per_second": main.decode_tokens_per_second,
        "baseline_decode_tokens_per_second": baseline.decode_tokens_per_second,
    }
    summary |= _acceptance(method)
    summary |= {
        "cost_ratio": None if outputs is None else cost_ratio(baseline, method),
        "host_overhead": main.host_overhead,
        "baseline_host_overhead": baseline.host_overhead,
    }
    summary |= main.fractions()
    if outputs is not None:
        summary |= _of_baseline(baseline.fractions())
    summary |= (outputs or OutputComparison.of_nothing()).figures
    summary |= {
        "num_prompts": len({row.row for row in main.requests}),
        "num_requests": len(main.requests),
        "num_repeats": len({row.key.repeat for row in main.requests}),
        "num_prompts_cut": len({row.id for row in main.requests if row.num_cut_tokens}),
        "num_prompt_tokens": sum(row.num_prompt_tokens for row in main.requests),
        "num_generated_tokens": main.counts.num_generated_tokens,
        "baseline_num_generated_tokens": baseline.counts.num_generated_tokens,
        "wall_seconds": main.sum("wall"),
        "baseline_wall_seconds": baseline.sum("wall"),
    }
    summary |= main.latencies()
    if outputs is not None:
        summary |= _of_baseline(baseline.latencies())
    return summary, freedom


def _of_baseline(figures: dict[str, Any]) -> dict[str, Any]:
    return {f"baseline_{name}": value for name, value in figures.items()}


def _intervals(summary: dict[str, Any], freedom: dict[str, float]) -> dict[str, Any]:
    """Return the figures of the summary that have an interval, with it."""
    intervals = {}
    for key, interval in summary.items():
        name = key.removesuffix("_ci95")
        if name != key:
            unit = "group" if "speedup" in name else "prompt"
            intervals[name] = {"value": summary[name], "ci95": interval, "unit": unit}
            if name in freedom:
                intervals[name]["freedom"] = freedom[name]
    return intervals


def _acceptance(method: RunSide) -> dict[str, Any]:
    by_prompt: dict[str, list[Counts]] = defaultdict(list)
    for row in method.requests:
        by_prompt[row.row].append(row.counts)
    prompts = [Counts.total(counts) for counts in by_prompt.values()]
    values, intervals = acceptance_figures(prompts)
    figures: dict[str, Any] = {}
    for name, value in values.items():
        figures |= {name: value, f"{name}_ci95": intervals[name]}
    figures["expected_acceptance"] = method.counts.expected_acceptance
    for name in (*TOTALS, "num_unjudged_tokens"):
        if name != "num_generated_tokens":
            figures[name] = getattr(method.counts, name)
    return figures | _shift(method.counts, prompts)


def _shift(counts: Counts, prompts: Sequence[Counts]) -> dict[str, Any]:
    """Return how far a lossy rule moved the output; all None for a lossless one."""
    figures: dict[str, Any] = {name: getattr(counts, name) for name in (*SHIFT, "num_infinite_kl")}
    totals = []
    for prompt in prompts:
        if prompt.shift is not None:
            lists = (prompt.shift.total_variation, prompt.shift.kl, prompt.shift.refusal)
            denominators = [prompt.num_generated_tokens, prompt.num_accepted_tokens]
            totals.append([*map(math.fsum, lists), *map(float, denominators)])
    statistics: dict[str, tuple[Statistic, Interval]] = {
        "output_tv": (lambda t: t[..., 0] / t[..., 3], SHARE),
        "output_kl": (lambda t: t[..., 1] / t[..., 3], POSITIVE),
        "refused_rate": (lambda t: t[..., 2] / t[..., 4], SHARE),
    }
    for name, (statistic, bounds) in statistics.items():
        if figures[name] is not None:
            figures[f"{name}_ci95"] = interval_of(np.array(totals), statistic, bounds)
    return figures


def _per_position(counts: Counts) -> list[dict[str, Any]]:
    columns = {
        "num_reached": counts.reached,
        "num_accepted": counts.accepted,
        "unconditional": counts.acceptance_at_position,
        "conditional": counts.conditional_acceptance_at_position,
        "expected": counts.expected_acceptance_at_position,
    }
    if counts.shift is not None:
        columns |= {name: getattr(counts, f"{name}_at_position") for name in SHIFT}
    table = []
    for position, values in enumerate(zip(*columns.values(), strict=True), start=1):
        table.append({"position": position} | dict(zip(columns, values, strict=True)))
    return table


def _histogram(method: RunSide) -> dict[str, Any]:
    rates, lengths = [], []
    for row in method.requests:
        if row.counts.num_draft_tokens:
            rates.append(row.counts.draft_acceptance_rate)
            lengths.append(row.counts.mean_acceptance_length)
    return {
        "draft_acceptance_rate": asdict(Histogram.of(rates)),
        "mean_acceptance_length": {f"p{p}": percentile(lengths, p) for p in (10, 50, 90)},
        "num_requests_without_drafts": len(method.requests) - len(rates),
    }


def _by_category(baseline: RunSide, method: RunSide) -> dict[str, dict[str, Any]]:
    """Return the figures that depend on the kind of prompt.

    The speedup is None if a group mixes categories.
    """
    by_category: dict[str, list[RequestRow]] = defaultdict(list)
    in_group: dict[int, set[str]] = defaultdict(set)
    for row in method.requests:
        by_category[row.category].append(row)
        in_group[row.key.group].add(row.category)
    by_category.pop("", None)
    table = {}
    for category, rows in sorted(by_category.items()):
        counts = Counts.total([row.counts for row in rows])
        speeds = []
        for side in (baseline, method):
            groups = [row for row in side.groups if in_group[row.key.group] == {category}]
            speeds.append(RunSide([], groups, Counts()).tokens_per_second)
        plain, fast = speeds
        is_mixed = any(len(in_group[row.key.group]) > 1 for row in rows)
        table[category] = {
            "num_prompts": len({row.row for row in rows}),
            "speedup": fast / plain if plain and fast and not is_mixed else None,
            "draft_acceptance_rate": counts.draft_acceptance_rate,
            "mean_acceptance_length": counts.mean_acceptance_length,
            "tokens_per_target_forward": counts.tokens_per_target_forward,
        }
    return table
