"""A decision in words: the answer, the speedups behind it, and a table by load."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.comparison import Comparison, Outcome, Standing
from specresearch.reporting.decision import Answer, Decision, useful_gain
from specresearch.reporting.drawing import TextTable
from specresearch.reporting.findings import Finding, findings
from specresearch.reporting.formatting import (
    NOTHING,
    inline,
    interval,
    limit_name,
    listed,
    loads_listed,
    seconds,
    times,
)
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.serving import Serving, serving

WRONG_OUTPUT = (
    "changes the target's output, which a lossless method must not do; find out why before "
    "anything else."
)
SINGLE_ONLY = (
    "With several requests at once the target has less time to spare, and speculation that pays "
    "for one request often costs time then. Nothing has been measured there yet."
)
TOGETHER = (
    "These intervals hold at 95% for all {} settings and loads together, so they are wider than "
    "those under Every comparison and of specresearch.table, each of which stands alone."
)
BEST, THIS = 3, "this setting"  # a column of the table, and what says nothing there


@dataclass(frozen=True)
class Recommendation:
    """A decision in words.

    Attributes:
        headline: The answer with its bound.
        reason: The speedups that it rests on.
        findings: In the order of a reader's questions.
        note: What must be known of the table's intervals; empty if nothing.
        serving: The decision as flags of other servers; None if nothing was decided.
    """

    decision: Decision
    headline: str
    reason: str
    findings: list[Finding]
    table: TextTable
    note: str
    serving: Serving | None


def explain(decision: Decision, requirements: Requirements) -> Recommendation:
    """Return a decision in words."""
    return Recommendation(
        decision=decision,
        headline=_headline(decision, requirements),
        reason=_reason(decision, requirements),
        findings=findings(decision, requirements),
        table=_table(decision, requirements),
        note=_note(decision),
        serving=serving(decision),
    )


def _note(decision: Decision) -> str:
    has_interval = any(point.gain and point.gain.has_interval for point in decision.points)
    num_compared = decision.points[0].num_compared
    return TOGETHER.format(num_compared) if has_interval and num_compared > 1 else ""


def _headline(decision: Decision, requirements: Requirements) -> str:
    answer, last, first = decision.answer, decision.last_faster, decision.first_slower
    if answer is Answer.SPEED:
        return f"{answer.value} ({decision.workload.caveats})"
    if last is not None and first is not None:
        return f"Turn it on up to {last.label}, off from {first.amount_label}"
    if answer is Answer.SOME:
        faster = [point.load.amount_label for point in decision.with_outcome(Outcome.FASTER)]
        return f"Turn it on at {listed(faster)} {decision.unit} only"
    if answer is not Answer.MEASURE:
        return answer.value
    if decision.with_outcome(Outcome.FASTER):
        more = "" if all(point.load.is_single for point in decision.points) else "more "
        return f"Measure {more}under load before turning it on"
    if any(point.limits_that_are(Standing.DOUBTFUL) for point in decision.points):
        return "Measure more: a limit may be broken"
    leanings = {leaning(point) for point in decision.points}
    if len(leanings) == 1 and leanings != {""}:
        (words,) = leanings
        return f"{words[0].upper()}{words[1:]}; measure more"
    worth = requirements.worth
    if worth != 1:
        return f"Measure more: it is too early to tell whether it is {worth:g} times as fast"
    return "Measure more: it is too early to tell faster from slower"


def leaning(point: Comparison) -> str:
    """Return which way a speedup without an interval points; it decides nothing."""
    gain = point.gain
    if gain is None or gain.has_interval or round(gain.value, 2) == 1:
        return ""
    return "faster so far" if gain.value > 1 else "slower so far"


def _reason(decision: Decision, requirements: Requirements) -> str:
    """Return the verdicts with their loads and speedups, in the order of the loads."""
    subject = decision.setting.phrase
    if any(point.output.is_wrong for point in decision.points):
        return f"{subject} {WRONG_OUTPUT}"
    by_verdict: dict[str, list[Comparison]] = {}
    for point in decision.points:
        by_verdict.setdefault(_verdict(point, requirements.worth), []).append(point)
    clauses = []
    for words, points in by_verdict.items():
        loads = loads_listed([point.load for point in points])
        clauses.append(f"{words} at {loads}, {_spread(points)}")
    reason = f"{subject}: {'; '.join(clauses)}."
    is_single = all(point.load.is_single for point in decision.points)
    if decision.answer is Answer.MEASURE and is_single and decision.with_outcome(Outcome.FASTER):
        return f"{reason} {SINGLE_ONLY}"
    return reason


def _limit_names(point: Comparison, standing: Standing) -> str:
    return listed([limit_name(name) for name in point.limits_that_are(standing)])


def _spread(points: Sequence[Comparison]) -> str:
    """Return the speedup with its interval, or the range over several loads."""
    gains = [point.gain for point in points if point.gain is not None]
    if not gains:
        return "without a speedup (nothing that was measured can be compared)"
    if len(gains) == 1:
        return times(gains[0])
    values = [gain.value for gain in gains]
    bounds = [bound for gain in gains for bound in gain.interval or ()]
    spread = " (no intervals)"
    if bounds:
        spread = f" (95% intervals within {min(bounds):.2f} to {max(bounds):.2f})"
    return f"{min(values):.2f} to {max(values):.2f} times as fast{spread}"


def _table(decision: Decision, requirements: Requirements) -> TextTable:
    shown = []
    for name in dict.fromkeys(("ttft_p99", "tpot_p99", *requirements.limits)):
        if any(point.speculative[name] for point in decision.points):
            shown.append(name)
    rows = []
    for point in decision.points:
        verdict = _verdict(point, requirements.worth)
        cells = [point.load.label, interval(point.gain), verdict, _best(decision, point)]
        for name in shown:
            if point.both_overloaded or point.speculative[name] is None:
                cells.append(NOTHING)
            else:
                before, after = (seconds(side.value(name)) for side in point.sides)
                cells.append(f"{before} → {after}")
        rows.append(cells)
    header = ["Load", "Speedup", "Verdict", "Best there"]
    header += [f"{limit_name(name)}, plain → this" for name in shown]
    if all(row[BEST] == THIS for row in rows):
        for row in (header, *rows):
            del row[BEST]
    return TextTable(header, rows)


def _verdict(point: Comparison, worth: float) -> str:
    """Return the outcome in words: never slower or faster where the interval includes 1."""
    gain, outcome = point.gain, point.outcome
    words = outcome.value
    if point.output.is_wrong:
        words = "wrong output"
    elif point.limits_that_are(Standing.BROKEN):
        words = f"breaks {_limit_names(point, Standing.BROKEN)}"
    elif point.limits_that_are(Standing.DOUBTFUL) and outcome is Outcome.UNCLEAR:
        words = f"may break {_limit_names(point, Standing.DOUBTFUL)}"
    elif outcome is Outcome.UNCLEAR:
        words = leaning(point) or words
    elif gain is not None and not (gain.is_above(1.0) or gain.is_below(1.0)):
        words = f"keeps {_limit_names(point, Standing.KEPT)}"
    elif gain is not None and gain.is_above(1.0) != (outcome is Outcome.FASTER):
        words = f"{'below' if outcome is Outcome.SLOWER else 'above'} {worth:g}"
    return f"{words} (overloaded)" if point.any_overloaded else words


def _best(decision: Decision, point: Comparison) -> str:
    """Return the best choice at the load of a point."""
    best = decision.best_at(point.load)
    if best.gain is None:
        return NOTHING
    if useful_gain(best) < 1:
        return "plain decoding"
    if best.setting == decision.setting:
        return THIS
    label = best.setting.label.removeprefix(f"{decision.setting.method}, ")
    return f"{label}: {inline(best.gain)}"
