"""What a decision rests on and what to do about it, each finding with its interval."""

from collections.abc import Iterator

from specresearch.reporting.comparison import Comparison, Standing
from specresearch.reporting.decision import Decision
from specresearch.reporting.draft_lengths import draft_length
from specresearch.reporting.finding import Finding
from specresearch.reporting.formatting import (
    count,
    interval,
    limit_name,
    listed,
    loads_listed,
    seconds,
)
from specresearch.reporting.next_steps import next_step
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.tails import class_tails
from specresearch.reporting.workload import BATCH, Load


def findings(decision: Decision, requirements: Requirements) -> list[Finding]:
    """Return what there is to say, in the order of a reader's questions."""
    all_findings = [
        next_step(decision),
        _limits(decision, requirements),
        Finding("Keeping up", _line(_overload(decision)), is_open=True),
        Finding("Output", _line(_output(decision)), is_open=True),
        Finding("Who pays", class_tails(decision), is_open=True),
        draft_length(decision),
        Finding("Acceptance", tuple(_acceptance(decision))),
        Finding("Evidence", _line(_evidence(decision))),
    ]
    return [finding for finding in all_findings if finding is not None and finding.lines]


def _line(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _limits(decision: Decision, requirements: Requirements) -> Finding:
    """Return which limits are kept; it stands open if the user gave them, or if they matter."""
    lines = []
    source = f", {requirements.source}" if requirements.source else ""
    for name, limit in requirements.limits.items():
        standing = "; ".join(_standings(decision, name))
        lines.append(f"{limit_name(name)} at most {seconds(limit)}{source}: {standing}.")
    standings = {standing for point in decision.points for standing in point.standings.values()}
    is_open = not requirements.source or bool(standings - {Standing.HOPELESS})
    return Finding("Your limits", tuple(lines), is_open=is_open)


def _standings(decision: Decision, name: str) -> Iterator[str]:
    """Yield what becomes of a limit, with its loads."""
    loads: dict[str, list[Load]] = {}
    for point in decision.points:
        loads.setdefault(_standing(point, name), []).append(point.load)
    for words, at in loads.items():
        yield f"{words} at {loads_listed(at)}"


def _standing(point: Comparison, name: str) -> str:
    if name in point.standings:
        return point.standings[name].value
    if point.both_overloaded:
        return "not compared, since neither side keeps up,"
    return "not measured" if point.speculative[name] is None else "kept"


def _overload(decision: Decision) -> str:
    plain = [p.load.amount_label for p in decision.points if p.is_baseline_overloaded]
    method = [p.load.amount_label for p in decision.points if p.is_overloaded]
    clauses = []
    for side, loads in (("plain decoding", plain), ("the method", method)):
        if loads:
            clauses.append(f"{side} could not keep up with {listed(loads)}")
    if not clauses:
        return ""
    return (
        f"{' and '.join(clauses)} {decision.unit}: the queue grew. There, the speedup compares "
        "throughput, the most that each side can do, and not how long requests waited."
    )


def has_window(decision: Decision) -> bool:
    """Return whether figures leave out warm-up and tail, as those of load tests do."""
    return decision.axis != BATCH


def _acceptance(decision: Decision) -> Iterator[str]:
    point = decision.points[0]
    acceptance = point.speculative.acceptance
    if acceptance is None or acceptance.rate is None:
        return
    yield f"At {point.load.label}, the share of drafts accepted was {interval(acceptance.rate)}."
    if acceptance.p10 is not None:
        yield f"For a tenth of the requests it was {interval(acceptance.p10)} or less."


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
        if has_window(decision):
            unchanged += " (warm-up and tail included)"
        statements.insert(0, unchanged)
    return "; ".join(filter(None, dict.fromkeys(statements)))


def _evidence(decision: Decision) -> str:
    points = decision.points
    folders, num_requests = set(), 0
    for point in points:
        folders |= {point.folder, *point.pooled_with}
        num_requests += point.num_requests
    how = "in turns with" if all(point.is_interleaved for point in points) else "measured beside"
    if any(point.unpaired for point in points):
        how = "at another time than"
    counted = count(num_requests, "request")
    if has_window(decision):
        counted += " between warm-up and tail"
    return f"{counted} on each side, in {count(len(folders), 'folder')}, {how} plain decoding"
