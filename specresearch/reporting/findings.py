"""What a decision rests on and what to do about it, each finding with its interval."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specresearch.reporting.comparison import Comparison, Outcome, Standing
from specresearch.reporting.decision import Answer, Decision
from specresearch.reporting.draft_lengths import draft_lengths
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
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.tails import class_tails, slowest_requests
from specresearch.reporting.workload import BATCH

COSTS, PAYS = 0.5, 0.65  # acceptance rates, by rule of thumb
NO_LIMITS = "None given: --ttft and --tpot (seconds) hold the figures against yours."
BY_LOAD = (
    "Turn it off above that load by the number of running requests, or let controller=goodput "
    "decide:"
)
BY_CONTROLLER = (
    "Let a controller decide at every step how much to draft, and measure it at the same loads:"
)
UNDER_LOAD = "Measure it under load, with a controller that drafts only where it pays:"
BEFORE_GIVING_UP = "Before giving up, measure a controller that drafts only where it pays:"


@dataclass(frozen=True)
class Finding:
    """One finding of a decision.

    Attributes:
        lines: Text, one line below the other.
        command: What to type.
    """

    term: str
    lines: tuple[str, ...]
    command: str = ""


def findings(decision: Decision, requirements: Requirements) -> list[Finding]:
    """Return what there is to say, in the order of a reader's questions."""
    lengths, length_command = draft_lengths(decision)
    next_term, next_line, next_command = _next_step(decision)
    all_findings = [
        Finding("Crosses over", _line(_crossover(decision))),
        Finding("Draft length", lengths, length_command),
        Finding("Your limits", tuple(_limits(decision, requirements))),
        Finding("Keeping up", _line(_overload(decision))),
        Finding("Slowest requests", slowest_requests(decision)),
        Finding("Who pays", class_tails(decision)),
        Finding("Acceptance", tuple(_acceptance(decision))),
        Finding("Output", _line(_output(decision))),
        Finding(next_term, _line(next_line), next_command),
        Finding("Evidence", _line(_evidence(decision))),
    ]
    return [finding for finding in all_findings if finding.lines]


def _line(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _crossover(decision: Decision) -> str:
    points = decision.points
    if any(point.output.is_wrong for point in points):
        return ""
    last, first = decision.last_faster, decision.first_slower
    if last is not None and first is not None:
        between = f"between {last.amount_label} and {first.amount_label} {decision.unit}"
        unclear = decision.with_outcome(Outcome.UNCLEAR)
        unclear = [point for point in unclear if last < point.load < first]
        return f"{between}{_untold('; in between it', unclear)}"
    if len(points) == 1:
        return f"not known: measured at {points[0].load.label} only"
    if decision.answer is Answer.ON:
        highest = max(point.load for point in decision.with_outcome(Outcome.FASTER))
        above = [point for point in points if point.load > highest]
        details = _untold("; above that it", above) or ", the highest load measured"
        return f"not up to {highest.label}{details}"
    if decision.answer is Answer.OFF:
        lowest = min(point.load for point in decision.with_outcome(Outcome.SLOWER))
        if lowest.is_single:
            return f"nowhere: it does not pay at {lowest.label} already"
        untold = _untold("; there it", [point for point in points if point.load < lowest])
        details = f", if anywhere{untold}" if untold else ", the lowest load measured, if anywhere"
        return f"below {lowest.label}{details}"
    return "no single load: see the table"


def _untold(where: str, points: Sequence[Comparison]) -> str:
    """Return a clause on the loads at which the outcome is unclear, or ""."""
    gains = [f"{point.load.amount_label}: {inline(point.gain)}" for point in points]
    return f"{where} cannot be told ({'; '.join(gains)})" if gains else ""


def _limits(decision: Decision, requirements: Requirements) -> Iterator[str]:
    if not requirements.limits:
        yield NO_LIMITS
    source = f", {requirements.source}" if requirements.source else ""
    for name, limit in requirements.limits.items():
        standing = "; ".join(_standings(decision, name))
        yield f"{limit_name(name)} at most {seconds(limit)}{source}: {standing}."


def _standings(decision: Decision, name: str) -> Iterator[str]:
    """Yield at which loads a limit is broken, and at which it is kept."""
    for standing in (Standing.BROKEN, Standing.DOUBTFUL, Standing.HOPELESS, Standing.KEPT):
        latencies = []
        for point in decision.points:
            if point.standings.get(name) is standing:
                latency = seconds_inline(point.speculative[name])
                latencies.append(f"{point.load.amount_label} ({latency})")
        if latencies:
            yield f"{standing.value} at {listed(latencies)}"
    others = [point for point in decision.points if name not in point.standings]
    lost = [point.load for point in others if point.both_overloaded]
    compared = [point for point in others if not point.both_overloaded]
    kept = [point.load for point in compared if point.speculative[name] is not None]
    unknown = [point.load.amount_label for point in compared if point.speculative[name] is None]
    if kept:
        yield f"kept at {loads_listed(kept)}"
    if unknown:
        yield f"not measured at {listed(unknown)}"
    if lost:
        yield f"not compared at {loads_listed(lost)}, where neither side keeps up"


def _overload(decision: Decision) -> str:
    plain = [p.load.amount_label for p in decision.points if p.is_baseline_overloaded]
    method = [p.load.amount_label for p in decision.points if p.is_overloaded]
    clauses = []
    for side, loads in (("plain decoding", plain), ("the method", method)):
        if loads:
            clauses.append(f"{side} could not answer {listed(loads)}")
    if not clauses:
        return ""
    return (
        f"{'; '.join(clauses)} {decision.unit}: the queue grew. What each side can do, its "
        "throughput, is compared there, and not how long requests waited."
    )


def _acceptance(decision: Decision) -> Iterator[str]:
    point = decision.points[0]
    acceptance = point.speculative.acceptance
    if acceptance is None or acceptance.rate is None:
        return
    rate = acceptance.rate.value
    effect = "is about break-even"
    if rate < COSTS:
        effect = "usually costs time"
    elif rate > PAYS:
        effect = "usually pays"
    at = f" at {point.load.label}" if len(decision.points) > 1 else ""
    yield (
        f"{interval(acceptance.rate)} of the drafts were accepted{at}; by rule of thumb that "
        f"{effect}, and the speedup decides."
    )
    if acceptance.p10 is not None:
        slowest = interval(acceptance.p10)
        yield f"The tenth of the requests with the least acceptance lies below {slowest}."


def _output(decision: Decision) -> str:
    """Return one sum over all loads without a change, and the other statements as they are."""
    outputs = [point.output for point in decision.points]
    num_equal = sum(output.num_equal for output in outputs)
    statements = [output.statement for output in outputs if not output.num_equal]
    if num_equal:
        unchanged = (
            f"unchanged: {num_equal} of {num_equal} greedy outputs equal plain decoding's token "
            "for token"
        )
        statements.insert(0, unchanged)
    return "; ".join(filter(None, dict.fromkeys(statements)))


def _next_step(decision: Decision) -> tuple[str, str, str]:
    """Return what acts on the answer, or the next measurement: term, text and command."""
    answer, last, is_fixed = decision.answer, decision.last_faster, decision.setting.is_fixed
    if is_fixed and last is not None and last.is_closed:
        command = f"controller=batch_size_cutoff controller.max_requests={last.amount:.0f}"
        if decision.setting.length is not None:
            command += f" controller.num_draft_tokens={decision.setting.length}"
        return "How to", BY_LOAD, command
    if is_fixed and answer in (Answer.BELOW, Answer.SOME):
        return "How to", BY_CONTROLLER, "controller=goodput"
    if answer is Answer.MEASURE and decision.axis == BATCH:
        command = (
            f"python -m specresearch.load -m +proposer={decision.setting.method} "
            f"dataset={decision.workload.data} arrivals=closed_loop arrivals.concurrency=1,4,8,16"
        )
        return "Next", UNDER_LOAD, command
    if answer is Answer.OFF and all(point.setting.is_fixed for point in decision.all_points):
        return "Next", BEFORE_GIVING_UP, "controller=goodput"
    return "Next", "", ""


def _evidence(decision: Decision) -> str:
    points = decision.points
    folders = set()
    for point in points:
        folders |= {point.folder, *point.pooled_with}
    num_requests = sum(point.num_requests for point in points)
    num_unfinished = sum(not point.is_complete for point in points)
    is_interleaved = all(point.is_interleaved for point in points)
    text = (
        f"{count(num_requests, 'request')} on each side, {count(len(folders), 'folder')}, plain "
        f"decoding {'interleaved' if is_interleaved else 'measured'} in each"
    )
    if num_unfinished:
        text += f"; {num_unfinished} unfinished"
    if points[0].num_compared > 1:
        text += (
            f"; the intervals of the speedups hold together for all {points[0].num_compared} "
            "settings and loads compared"
        )
    return text
