"""What a decision rests on and what to do about it, each finding with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.decision import Answer, Decision, Outcome, Point
from specresearch.reporting.drafting_findings import draft_length
from specresearch.reporting.formatting import (
    count,
    inline,
    interval,
    limit_name,
    listed,
    loads_listed,
    seconds,
    seconds_inline,
)
from specresearch.reporting.limits import Limits
from specresearch.reporting.tail_findings import class_lines, slowest_lines
from specresearch.reporting.workload import BATCH, Load

COSTS, PAYS = 0.5, 0.65  # acceptance rates, by rule of thumb
NO_LIMITS = "None given: --ttft and --tpot (seconds) hold the figures against yours."
STANDINGS = {
    "broken": "broken, though plain decoding keeps it,",
    "doubtful": "perhaps broken, though plain decoding keeps it,",
    "hopeless": "broken, by plain decoding too,",
    "kept": "kept, though plain decoding breaks it,",
}


@dataclass(frozen=True)
class Finding:
    """One finding of a decision.

    Attributes:
        lines: Text, one line below the other; without any the finding is left out.
        command: What to type.
    """

    term: str
    lines: tuple[str, ...]
    command: str = ""


def findings(decision: Decision, limits: Limits) -> list[Finding]:
    """Return the findings in the order of a reader's questions; some may be empty."""
    lengths, length_command = draft_length(decision)
    return [
        _finding("Crosses over", _crossover(decision)),
        Finding("Draft length", lengths, length_command),
        Finding("Your limits", _limits(decision, limits)),
        _finding("Keeping up", _overload(decision)),
        Finding("Slowest requests", slowest_lines(decision)),
        Finding("Who pays", class_lines(decision)),
        Finding("Acceptance", _acceptance(decision)),
        _finding("Output", _output(decision)),
        _next_step(decision),
        _finding("Evidence", _evidence(decision)),
    ]


def _finding(term: str, text: str) -> Finding:
    return Finding(term, (text,) if text else ())


def _crossover(decision: Decision) -> str:
    points, last, first = decision.points, decision.last_faster, decision.first_slower
    if any(point.comparison.output.is_wrong for point in points):
        return ""
    if last is not None and first is not None:
        between = f"between {last.amount_label} and {first.amount_label} {decision.unit}"
        unclear = decision.with_outcome(Outcome.UNCLEAR)
        unclear = [point for point in unclear if last < point.load < first]
        if not unclear:
            return between
        return f"{between}; in between it cannot be told ({_gains(unclear)})"
    if len(points) == 1:
        return f"not known: measured at {points[0].load.label} only"
    if decision.answer is Answer.ON:
        highest = max(point.load for point in decision.with_outcome(Outcome.FASTER))
        above = [point for point in points if point.load > highest]
        if not above:
            return f"not up to {highest.label}, the highest load measured"
        return f"not up to {highest.label}; above that it cannot be told ({_gains(above)})"
    if decision.answer is Answer.OFF:
        lowest = min(point.load for point in decision.with_outcome(Outcome.SLOWER))
        return _below(lowest, points)
    return "no single load: see the table"


def _below(lowest: Load, points: Sequence[Point]) -> str:
    """Return where a setting crosses over that is slower from `lowest` on, and faster nowhere."""
    if lowest.is_single:
        return f"nowhere: it does not pay at {lowest.label} already"
    unclear = [point for point in points if point.load < lowest]
    if unclear:
        return f"below {lowest.label}, if anywhere; there it cannot be told ({_gains(unclear)})"
    return f"below {lowest.label}, the lowest load measured, if anywhere"


def _gains(points: Sequence[Point]) -> str:
    gains = []
    for point in points:
        gains.append(f"{point.load.amount_label}: {inline(point.comparison.gain)}")
    return "; ".join(gains)


def _limits(decision: Decision, limits: Limits) -> tuple[str, ...]:
    given = limits.given()
    if not given:
        return (NO_LIMITS,)
    source = f", {limits.source}" if limits.source else ""
    lines = []
    for name, limit in given.items():
        standing = _standing(decision, name)
        lines.append(f"{limit_name(name)} at most {seconds(limit)}{source}: {standing}.")
    return tuple(lines)


def _standing(decision: Decision, name: str) -> str:
    """Return at which loads a limit is kept, and how it is broken at the others."""
    clauses, mentioned = [], set()
    lost = [point.load for point in decision.points if point.comparison.both_overloaded]
    for standing, words in STANDINGS.items():
        points = [point for point in decision.points if name in getattr(point, standing)]
        mentioned |= {point.load for point in points}
        latencies = []
        for point in points:
            latency = seconds_inline(point.comparison.speculative[name])
            latencies.append(f"{point.load.amount_label} ({latency})")
        clauses += [f"{words} at {listed(latencies)}"] if latencies else []
    kept, unknown = [], []
    for point in decision.points:
        if point.load not in mentioned and point.load not in lost:
            is_known = point.comparison.speculative[name] is not None
            (kept if is_known else unknown).append(point.load)
    if kept:
        clauses.append(f"kept at {loads_listed(kept)}")
    if unknown:
        clauses.append(f"not measured at {listed([load.amount_label for load in unknown])}")
    if lost:
        clauses.append(f"not compared at {loads_listed(lost)}, where neither side keeps up")
    return "; ".join(clauses)


def _overload(decision: Decision) -> str:
    loads: dict[str, list[str]] = {"plain decoding": [], "the method": []}
    for point in decision.points:
        if point.comparison.is_baseline_overloaded:
            loads["plain decoding"].append(point.load.amount_label)
        if point.comparison.is_overloaded:
            loads["the method"].append(point.load.amount_label)
    clauses = [f"{side} could not answer {listed(own)}" for side, own in loads.items() if own]
    if not clauses:
        return ""
    return (
        f"{'; '.join(clauses)} {decision.unit}: the queue grew. What each side can do, its "
        "throughput, is compared there, and not how long requests waited."
    )


def _acceptance(decision: Decision) -> tuple[str, ...]:
    point = decision.points[0]
    acceptance = point.comparison.speculative.acceptance
    if acceptance is None or acceptance.rate is None:
        return ()
    rate = acceptance.rate.value
    effect = "is about break-even"
    if rate < COSTS:
        effect = "usually costs time"
    elif rate > PAYS:
        effect = "usually pays"
    at = f" at {point.load.label}" if len(decision.points) > 1 else ""
    line = (
        f"{interval(acceptance.rate)} of the drafts were accepted{at}; by rule of thumb that "
        f"{effect}, and the speedup decides."
    )
    if acceptance.p10 is None:
        return (line,)
    slowest = interval(acceptance.p10)
    return line, f"The tenth of the requests with the least acceptance lies below {slowest}."


def _output(decision: Decision) -> str:
    """Return one sum over all loads without a change, and the other statements as they are."""
    outputs = [point.comparison.output for point in decision.points]
    num_equal = sum(output.num_equal for output in outputs)
    statements = []
    if num_equal:
        statements.append(
            f"unchanged: {num_equal} of {num_equal} greedy outputs equal plain decoding's token "
            "for token"
        )
    others = [output.statement for output in outputs if not output.num_equal and output.statement]
    return "; ".join([*statements, *dict.fromkeys(others)])


def _next_step(decision: Decision) -> Finding:
    """Return what acts on the answer, or the next measurement."""
    answer, last, is_fixed = decision.answer, decision.last_faster, decision.policy.is_fixed
    data, method = decision.workload.data, decision.policy.method
    if answer is Answer.BELOW and last is not None and last.is_closed and is_fixed:
        text = (
            "Turn it off above that load by the number of running requests, or let "
            "controller=goodput decide:"
        )
        command = f"controller=batch_size_cutoff controller.max_requests={last.amount:.0f}"
        if decision.policy.length is not None:
            command += f" controller.num_draft_tokens={decision.policy.length}"
        return Finding("How to", (text,), command)
    if answer in (Answer.BELOW, Answer.SOME) and is_fixed:
        text = (
            "Let a controller decide at every step how much to draft, and measure it at the same "
            "loads:"
        )
        return Finding("How to", (text,), "controller=goodput")
    if answer is Answer.MEASURE and decision.axis == BATCH:
        text = "Measure it under load, with a controller that drafts only where it pays:"
        load = "arrivals=closed_loop arrivals.concurrency=1,4,8,16"
        command = f"python -m specresearch.load -m +proposer={method} dataset={data} {load}"
        return Finding("Next", (text,), command)
    are_all_fixed = all(point.comparison.policy.is_fixed for point in decision.all_points)
    if answer is Answer.OFF and are_all_fixed:
        text = "Before giving up, measure a controller that drafts only where it pays:"
        return Finding("Next", (text,), "controller=goodput")
    return Finding("Next", ())


def _evidence(decision: Decision) -> str:
    comparisons = [point.comparison for point in decision.points]
    folders = set()
    for comparison in comparisons:
        folders |= {comparison.folder, *comparison.pooled_with}
    num_requests = sum(comparison.num_requests for comparison in comparisons)
    num_unfinished = sum(not comparison.is_complete for comparison in comparisons)
    is_interleaved = all(comparison.is_interleaved for comparison in comparisons)
    text = (
        f"{count(num_requests, 'request')} on each side, {count(len(folders), 'folder')}, plain "
        f"decoding {'interleaved' if is_interleaved else 'measured'} in each"
    )
    if num_unfinished:
        text += f"; {num_unfinished} unfinished"
    num_compared = comparisons[0].num_compared
    if num_compared > 1:
        text += (
            f"; the intervals of the speedups hold together for all {num_compared} settings and "
            "loads compared"
        )
    return text
