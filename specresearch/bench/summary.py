"""From a run's rows to its figures. Pure: the same rows give the same figures, however often a run was resumed."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.bench.acceptance_figures import TOTALS, acceptance_figures
from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.output_check import SCORE_DEFINITIONS
from specresearch.bench.outputs import OutputComparison
from specresearch.bench.rows import GroupRow
from specresearch.bench.side import Side
from specresearch.bench.side_comparison import SideComparison, StepTimes
from specresearch.metrics import DEFINITIONS, Counts
from specresearch.metrics.shift import ShiftSums
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
    ratio_of,
    spread,
    value_of,
)

SHIFT = ("output_tv", "output_kl", "refused_rate")
RUN_DEFINITIONS = DEFINITIONS | {
    "tokens_per_second": "generated tokens / wall time of generate(), prefill included",
    "decode_tokens_per_second": "generated tokens / (wall time - prefill time)",
    "fraction_*": "share of the wall time of generate(); host is what no named part accounts for",
    "*_ci95": f"{INTERVALS}. Speedups: over groups of batch_size prompts, each with its own baseline; acceptance: over prompts; "
    f"repeats of a prompt are added up first; null for fewer than {LEAST_UNITS} groups or prompts",
    "memory": "warm: a request finds what the method learnt from those before it, since the start of the repeat; cold: it does "
    "not; null: the method learns nothing that it could keep",
    "outputs_equal": "every greedy output of the method equals the baseline's token for token; null for sampled runs",
    **SCORE_DEFINITIONS,
    "num_prompts_cut": "prompts shortened to fit dataset.max_prompt_tokens and target.max_len - sampling.max_new_tokens",
}


@dataclass(frozen=True)
class Figures:
    """What results.json says of the rows.

    Attributes:
        summary: Flat, figures only.
        intervals: The summary's figures that have an interval, with it.
        sides: Figures by side; `side_intervals` has their intervals.
        acceptance: An `AcceptanceProfile` by side that drafts.
        step_times: A `StepTimes` by side.
        comparisons: A `SideComparison` by side that drafts.
        per_position: One entry per draft depth.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    side_intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    acceptance: dict[str, AcceptanceProfile] = field(default_factory=dict)
    step_times: dict[str, StepTimes] = field(default_factory=dict)
    comparisons: dict[str, SideComparison] = field(default_factory=dict)
    per_position: list[dict[str, Any]] = field(default_factory=list)
    histogram: dict[str, Any] = field(default_factory=dict)
    by_category: dict[str, dict[str, Any]] = field(default_factory=dict)


def summarize(
    requests: Sequence[RequestRow], groups: Sequence[GroupRow], outputs: OutputComparison | None
) -> Figures:
    """The figures of what was decoded on every side. Without a method, those that need one are None.

    outputs: the comparison of the two sides' outputs, None without a method.
    """
    baseline, method = Side.of(BASELINE, requests, groups), Side.of(METHOD, requests, groups)
    has_method = outputs is not None
    main = method if has_method else baseline
    summary: dict[str, Any] = {"speedup": None, "speedup_ci95": None, "speedup_basis": None}
    summary |= {
        f"{name}{end}": None
        for name in ("decode_speedup", "draft_prefill_speedup")
        for end in ("", "_ci95")
    }
    summary |= {"ideal_speedup": None, "efficiency": None}
    freedom: dict[str, float] = {}
    if has_method:
        speedups = _speedups(baseline, method)
        freedom = speedups.pop("freedom")
        summary |= speedups
    summary |= {
        "tokens_per_second": main.tokens_per_second,
        "baseline_tokens_per_second": baseline.tokens_per_second,
        "decode_tokens_per_second": main.decode_tokens_per_second,
        "baseline_decode_tokens_per_second": baseline.decode_tokens_per_second,
    }
    summary |= _acceptance(method)
    summary |= {"cost_ratio": _cost_ratio(baseline, method) if has_method else None}
    summary |= {
        "host_overhead": main.host_overhead,
        "baseline_host_overhead": baseline.host_overhead,
    }
    summary |= main.fractions("") | (baseline.fractions("baseline_") if has_method else {})
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
    summary |= main.latencies("") | (baseline.latencies("baseline_") if has_method else {})
    names = [name.removesuffix("_ci95") for name in summary if name.endswith("_ci95")]
    intervals = {
        name: {
            "value": summary[name],
            "ci95": summary[f"{name}_ci95"],
            "unit": "group" if "speedup" in name else "prompt",
        }
        | ({"freedom": freedom[name]} if name in freedom else {})
        for name in names
    }
    sides = {BASELINE: baseline} | ({METHOD: method} if has_method else {})
    profile = method.acceptance_profile()
    step_times = {name: side.step_times() for name, side in sides.items()}
    latencies = {name: side.latency_estimates() for name, side in sides.items()}
    comparisons = {}
    if has_method:
        comparisons[METHOD] = SideComparison(
            gain=Estimate.of(summary["speedup"], summary["speedup_ci95"], freedom.get("speedup")),
            decode_speedup=Estimate.of(summary["decode_speedup"], summary["decode_speedup_ci95"]),
            ideal_speedup=summary["ideal_speedup"],
        )
    return Figures(
        summary=summary,
        intervals=intervals,
        sides={name: side.figures() for name, side in sides.items()},
        side_intervals={
            name: {key: at.interval for key, at in estimates.items()}
            for name, estimates in latencies.items()
        },
        acceptance={METHOD: profile} if profile else {},
        step_times={name: times for name, times in step_times.items() if times},
        comparisons=comparisons,
        per_position=_per_position(method.counts),
        histogram=_histogram(method),
        by_category=_by_category(baseline, method),
    )


def _speedups(baseline: Side, method: Side) -> dict[str, Any]:
    """Times are compared per generated token, which for equal token counts is comparing times."""
    tells = all(row.draft_prefill is not None for row in method.groups)
    times = {"speedup": "wall", "decode_speedup": "decode"}
    times |= {"draft_prefill_speedup": "decode_and_draft_prefill"} if tells else {}
    names = (*times.values(), "num_generated_tokens")
    plain, fast = baseline.by_group(*names), method.by_group(*names)
    shared = sorted(plain.keys() & fast.keys())
    num = len(names)
    totals = np.array([plain[group] + fast[group] for group in shared]).reshape(-1, 2 * num)

    def speedup(time: int) -> Callable[[Float[np.ndarray, "... k"]], Float[np.ndarray, "..."]]:
        return lambda t: (t[..., time] / t[..., num - 1]) / (t[..., num + time] / t[..., -1])

    equal = all(plain[group][-1] == fast[group][-1] for group in shared)
    figures: dict[str, Any] = {}
    freedom: dict[str, float] = {}
    for column, name in enumerate(times):
        found = spread(totals, speedup(column))
        figures |= {
            name: value_of(speedup(column), totals),
            f"{name}_ci95": found and found.interval(),
        }
        freedom |= {name: found.freedom} if found else {}
    decode_speedup = figures["decode_speedup"]
    per_token = ratio_of(baseline.sum("verify"), baseline.sum("num_generated_tokens"))
    busy = ratio_of(
        method.sum("propose") + method.sum("verify"), method.sum("num_generated_tokens")
    )
    ideal = per_token / busy if per_token is not None and busy else None
    basis = (
        "wall time, equal token counts"
        if equal
        else "wall time per generated token (token counts differ)"
    )
    return figures | {
        "freedom": freedom,
        "speedup_basis": basis,
        "ideal_speedup": ideal,
        "efficiency": decode_speedup / ideal if ideal and decode_speedup is not None else None,
    }


def _acceptance(method: Side) -> dict[str, Any]:
    by_row: dict[str, list[Counts]] = defaultdict(list)
    for row in method.requests:
        by_row[row.row].append(row.counts)
    prompts = [Counts.total(counts) for counts in by_row.values()]
    values, intervals = acceptance_figures(prompts)
    figures: dict[str, Any] = {}
    for name, value in values.items():
        figures |= {name: value, f"{name}_ci95": intervals[name]}
    figures["expected_acceptance"] = method.counts.expected_acceptance
    names = (*TOTALS, "num_unjudged_tokens")
    figures |= {
        name: getattr(method.counts, name) for name in names if name != "num_generated_tokens"
    }
    return figures | _shift(method.counts, prompts)


def _shift(counts: Counts, prompts: Sequence[Counts]) -> dict[str, Any]:
    """How far a lossy rule moved the output; all None for a lossless one."""
    figures: dict[str, Any] = {name: getattr(counts, name) for name in (*SHIFT, "num_infinite_kl")}
    totals = np.array(
        [_shift_totals(prompt, prompt.shift) for prompt in prompts if prompt.shift is not None]
    )
    statistics: dict[str, tuple[Statistic, Interval]] = {
        "output_tv": (lambda t: t[..., 0] / t[..., 3], SHARE),
        "output_kl": (lambda t: t[..., 1] / t[..., 3], POSITIVE),
        "refused_rate": (lambda t: t[..., 2] / t[..., 4], SHARE),
    }
    for name, (statistic, bounds) in statistics.items():
        if figures[name] is not None:
            figures[f"{name}_ci95"] = interval_of(totals, statistic, bounds)
    return figures


def _shift_totals(counts: Counts, shift: ShiftSums) -> list[float]:
    sums = [math.fsum(values) for values in (shift.total_variation, shift.kl, shift.refusal)]
    return [*sums, float(counts.num_generated_tokens), float(counts.num_accepted_tokens)]


def _cost_ratio(baseline: Side, method: Side) -> float | None:
    draft = ratio_of(method.sum("propose"), method.sum("num_draft_passes"))
    target = ratio_of(baseline.sum("verify"), baseline.sum("num_steps"))
    return draft / target if draft is not None and target else None


def _per_position(counts: Counts) -> list[dict[str, Any]]:
    rows = zip(
        counts.reached,
        counts.accepted,
        counts.acceptance_at_position,
        counts.conditional_acceptance_at_position,
        counts.expected_acceptance_at_position,
        strict=True,
    )
    names = ("num_reached", "num_accepted", "unconditional", "conditional", "expected")
    table = [
        {"position": i} | dict(zip(names, row, strict=True)) for i, row in enumerate(rows, start=1)
    ]
    shifts = zip(*(getattr(counts, f"{name}_at_position") for name in SHIFT), strict=True)
    for entry, shift in zip(table, shifts, strict=False):
        entry |= dict(zip(SHIFT, shift, strict=True))
    return table


def _histogram(method: Side) -> dict[str, Any]:
    rates = [
        row.counts.draft_acceptance_rate for row in method.requests if row.counts.num_draft_tokens
    ]
    return {
        "draft_acceptance_rate": asdict(Histogram.of(rates)),
        "num_requests_without_drafts": len(method.requests) - len(rates),
    }


def _by_category(baseline: Side, method: Side) -> dict[str, dict[str, Any]]:
    """The figures that depend on the kind of prompt; the speedup only where no group mixes categories."""
    categories = sorted({row.category for row in method.requests if row.category})
    in_group: dict[int, set[str]] = defaultdict(set)
    for row in method.requests:
        in_group[row.key.group].add(row.category)
    table = {}
    for category in categories:
        rows = [row for row in method.requests if row.category == category]
        counts = Counts.total([row.counts for row in rows])
        pure = {group for group, found in in_group.items() if found == {category}}
        unmixed = all(row.key.group in pure for row in rows)
        sides = [
            Side([], [g for g in side.groups if g.key.group in pure], Counts())
            for side in (baseline, method)
        ]
        plain, fast = sides[0].tokens_per_second, sides[1].tokens_per_second
        table[category] = {
            "num_prompts": len({row.row for row in rows}),
            "speedup": fast / plain if unmixed and plain and fast else None,
            "draft_acceptance_rate": counts.draft_acceptance_rate,
            "mean_acceptance_length": counts.mean_acceptance_length,
            "tokens_per_target_forward": counts.tokens_per_target_forward,
        }
    return table
