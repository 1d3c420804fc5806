"""A folder of `python -m specresearch.run`, as one comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specresearch.bench.folder import GROUPS, read_rows
from specresearch.bench.outputs import OutputComparison
from specresearch.bench.rows import GroupRow
from specresearch.bench.summary import Figures, summarize
from specresearch.reporting.comparisons import (
    BATCH,
    Acceptance,
    Comparison,
    Load,
    Output,
    Policy,
    Side,
)
from specresearch.reporting.estimates import Estimate
from specresearch.reporting.reading import (
    FIXED,
    LATENCIES,
    PERCENTS,
    acceptance_of,
    controller_of,
    drafts_asked,
    estimate,
    inner,
    latencies,
    most_drafts,
    number,
    read_config,
    settings_of,
    workload_of,
)
from specresearch.results.folder import REQUESTS
from specresearch.rows import BASELINE, METHOD, RequestRow
from specresearch.statistics import Histogram

STEP = ("propose", "verify", "accept", "commit", "host")


def read_run(folder: Path, results: Mapping[str, Any]) -> Comparison:
    """ValueError where no group of prompts was decoded by both sides."""
    config, summary, provenance = read_config(folder), results["summary"], results["provenance"]
    requests, groups = read_rows(folder, REQUESTS), read_rows(folder, GROUPS)
    intervals = inner(results, "intervals")
    if not summary:
        is_greedy = not inner(config, "sampling").get("temperature")
        figures = _summarize(requests, groups, inner(provenance, "method"), is_greedy=is_greedy)
        summary, intervals = figures.summary, figures.intervals
    method = summary.get("method") or inner(provenance, "method").get("name")
    if method is None:
        raise ValueError(
            "plain decoding only, without a method beside it: not used for the decision"
        )
    freedom = inner(intervals, "speedup").get("freedom")
    gain = estimate(summary.get("speedup"), summary.get("speedup_ci95"), freedom)
    if gain is None:
        raise ValueError(
            f"{method} has no paired baseline (no group was decoded by both sides): not used"
        )
    missing = (
        ()
        if requests
        else (f"{REQUESTS} is missing: latencies and acceptance come without intervals",)
    )
    told, policy = inner(provenance, "method"), _policy(method, config, results)
    return Comparison(
        folder,
        workload_of(config, provenance),
        Load(BATCH, float(config.get("batch_size") or 1)),
        policy,
        gain,
        "throughput",
        _side(BASELINE, summary, requests, groups),
        _side(METHOD, summary, requests, groups, results),
        number(summary.get("ideal_speedup")),
        estimate(summary.get("decode_speedup"), summary.get("decode_speedup_ci95")),
        Output.of(summary, told.get("lossless")),
        is_complete=bool(results.get("complete")),
        num_requests=int(summary.get("num_requests") or 0),
        fingerprint=str(inner(provenance, "dataset").get("fingerprint") or ""),
        started=str(provenance.get("started") or ""),
        settings=settings_of(config, policy.controller, most_drafts(config, provenance)),
        missing=missing,
    )


def _summarize(
    requests: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    method: Mapping[str, Any],
    *,
    is_greedy: bool,
) -> Figures:
    """The figures of a run that was killed before it wrote any, from the groups that both sides decoded."""
    done = {
        side: {_place(row) for row in groups if row["side"] == side} for side in (BASELINE, METHOD)
    }
    paired = done[BASELINE] & done[METHOD]
    if not paired:
        raise ValueError(
            "was stopped before both sides had decoded a group of prompts: nothing to compare"
        )
    rows = [RequestRow.from_json(row) for row in requests if _place(row) in paired]
    whole = [GroupRow.from_json(row) for row in groups if _place(row) in paired]
    if is_greedy:
        return summarize(rows, whole, OutputComparison.greedy(rows))
    rule, lossless = str(method.get("acceptance")), bool(method.get("lossless"))
    return summarize(rows, whole, OutputComparison.of_samples(rule, rows, whole, lossless=lossless))


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["repeat"], row["group"]


def _policy(method: str, config: Mapping[str, Any], results: Mapping[str, Any]) -> Policy:
    provenance = inner(results, "provenance")
    controller, tree = controller_of(config, provenance), inner(config, "proposer").get("tree")
    length = drafts_asked(config, provenance) or len(results.get("per_position") or ()) or None
    return Policy(
        method,
        controller,
        length if controller == FIXED else None,
        f"{tree} tree" if tree in ("static", "dynamic") else "",
    )


def _side(
    side: str,
    summary: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    results: Mapping[str, Any] | None = None,
) -> Side:
    """results: of the side that drafted."""
    prefix = "baseline_" if side == BASELINE else ""
    names = (
        "tokens_per_second",
        *(f"{name}_p{percent}" for name in LATENCIES for percent in PERCENTS),
    )
    told = {name: estimate(summary.get(f"{prefix}{name}"), None) for name in names}
    figures = {name: figure for name, figure in told.items() if figure is not None}
    if "tokens_per_second" in figures:
        figures["throughput"] = figures.pop("tokens_per_second")
    own = [row for row in requests if row.get("side") == side]
    figures |= latencies(own, "row")
    acceptance = None
    if results is not None:
        acceptance = acceptance_of(own, "row") or _acceptance(summary, results)
        for name in ("mean_acceptance_length", "tokens_per_target_forward"):
            found = estimate(summary.get(name), summary.get(f"{name}_ci95"))
            figures |= {name: found} if found else {}
    done = [row for row in groups if row.get("side") == side]
    num_steps = sum(row["num_steps"] for row in done)
    num_tokens = sum(row["num_generated_tokens"] for row in done)
    return Side(
        figures, acceptance, _step(done, num_steps), num_tokens / num_steps if num_steps else None
    )


def _step(groups: Sequence[Mapping[str, Any]], num_steps: int) -> dict[str, float]:
    if not num_steps:
        return {}
    parts = {part: sum(row[part] for row in groups) for part in STEP if part != "host"}
    decode = sum(row["wall"] - row["prefill"] for row in groups)
    return {
        part: seconds / num_steps
        for part, seconds in (parts | {"host": decode - sum(parts.values())}).items()
    }


def _acceptance(summary: Mapping[str, Any], results: Mapping[str, Any]) -> Acceptance | None:
    """From the figures alone, without the requests' rows."""
    told = inner(results, "histogram", "draft_acceptance_rate")
    if not summary.get("num_draft_tokens") or not told:
        return None
    positions = tuple(
        dict(at)
        | {name: Estimate.of(number(at.get(name))) for name in ("unconditional", "conditional")}
        for at in results.get("per_position") or ()
    )
    rate = estimate(summary.get("draft_acceptance_rate"), summary.get("draft_acceptance_rate_ci95"))
    bins = Histogram(
        tuple(told["edges"]), tuple(told["counts"]), told["p10"], told["p50"], told["p90"]
    )
    return Acceptance(rate, Estimate.of(number(bins.p10)), bins, positions)
