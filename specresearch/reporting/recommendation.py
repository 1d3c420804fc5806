"""A decision in words: the answer, the speedups behind it, and a table by load."""

from collections import Counter
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

WRONG_OUTPUT = (
    "changes the target's output, which an exact method must not; find out why before anything "
    "else."
)
SINGLE_ONLY = (
    "for one request at a time. With several at once the target has less time to spare, and "
    "speculation that pays for one request often costs time then; nothing was measured there."
)
MORE_PROMPTS = "More prompts or repeats narrow the interval."
ON = (Answer.ON, Answer.BELOW, Answer.SOME)


@dataclass(frozen=True)
class Recommendation:
    """A decision in words.

    Attributes:
        headline: The answer with its bound.
        reason: The speedups that it rests on.
        spread: The recommended setting's speedups, for an overview.
        findings: In the order of a reader's questions.
    """

    decision: Decision
    headline: str
    reason: str
    spread: str
    findings: list[Finding]
    table: TextTable


def explain(decision: Decision, requirements: Requirements) -> Recommendation:
    """Return a decision in words."""
    return Recommendation(
        decision=decision,
        headline=_headline(decision, requirements),
        reason=_reason(decision, requirements),
        spread=_spread(decision.points),
        findings=findings(decision, requirements),
        table=_table(decision, requirements),
    )


def headline(recommendations: Sequence[Recommendation]) -> str:
    """Return the answer of the whole report."""
    decisions = [recommendation.decision for recommendation in recommendations]
    if len(decisions) == 1:
        answer = recommendations[0].headline
        is_on = decisions[0].answer in ON
        return f"{answer}: {decisions[0].setting.phrase}" if is_on else answer
    counts = Counter(decision.answer for decision in decisions)
    num_workloads = len({decision.workload for decision in decisions})
    if len(counts) == 1:
        where = "at every kind of load" if num_workloads == 1 else f"all {num_workloads} workloads"
        return f"{decisions[0].answer.value}: {where} measured"
    subject, where = "workload and the kind of load", f"in {{}} of {len(decisions)} cases"
    if num_workloads == len(decisions):
        subject, where = "workload", "for {}"
    elif num_workloads == 1:
        subject = "kind of load"
    answers = []
    for answer in Answer:
        if answer in counts:
            words = f"{answer.value[0].lower()}{answer.value[1:]}"
            answers.append(f"{words} {where.format(counts[answer])}")
    return f"It depends on the {subject}: {listed(answers)}"


def _headline(decision: Decision, requirements: Requirements) -> str:
    answer, last, first = decision.answer, decision.last_faster, decision.first_slower
    if last is not None and first is not None:
        return f"Turn it on up to {last.label}, off from {first.amount_label}"
    if answer is Answer.SOME:
        faster = [point.load.amount_label for point in decision.with_outcome(Outcome.FASTER)]
        return f"Turn it on at {listed(faster)} {decision.unit} only"
    if answer is not Answer.MEASURE:
        return answer.value
    if decision.with_outcome(Outcome.FASTER):
        return "Measure under load before turning it on"
    if any(point.limits_that_are(Standing.DOUBTFUL) for point in decision.points):
        return "Measure more: a limit may be broken"
    worth = requirements.worth
    if worth != 1:
        return f"Measure more: it cannot be told yet whether it is {worth:g} times as fast"
    return "Measure more: no difference from plain decoding can be told yet"


def _reason(decision: Decision, requirements: Requirements) -> str:
    subject = decision.setting.phrase
    if any(point.output.is_wrong for point in decision.points):
        return f"{subject} {WRONG_OUTPUT}"
    faster = decision.with_outcome(Outcome.FASTER)
    if decision.answer is Answer.MEASURE and faster:
        return f"{subject} is {_spread(faster)} {SINGLE_ONLY}"
    sentences = []
    for points, before, after in _clauses(decision, requirements.worth):
        if points:
            sentences.append(f"{subject} {before} {_where(points, decision)}{after}.")
            subject = "It"
    if decision.answer is Answer.MEASURE:
        sentences.append(MORE_PROMPTS)
    return " ".join(sentences)


def _clauses(decision: Decision, worth: float) -> list[tuple[list[Comparison], str, str]]:
    """Return the points of each outcome and reason, with the words around their loads."""
    faster = decision.with_outcome(Outcome.FASTER)
    broken, losing = _split(decision.with_outcome(Outcome.SLOWER), Standing.BROKEN)
    doubtful, close = _split(decision.with_outcome(Outcome.UNCLEAR), Standing.DOUBTFUL)
    below = "slower than plain decoding"
    if not all(point.gain is not None and point.gain.is_below(1.0) for point in losing):
        below = f"below {worth:g}, the least worth having"
    broken_names = _limit_names(broken, Standing.BROKEN)
    doubtful_names = _limit_names(doubtful, Standing.DOUBTFUL)
    too_close = f": too close, or too little measured, to say on which side of {worth:g} it lies"
    return [
        (faster, f"is {_spread(faster)}", ""),
        (broken, f"breaks a limit that plain decoding keeps ({broken_names})", ""),
        (losing, f"is only {_spread(losing)}, {below},", ""),
        (close, f"is {_spread(close)}", too_close),
        (doubtful, f"may break a limit that plain decoding keeps ({doubtful_names})", ""),
    ]


def _split(
    points: Sequence[Comparison], standing: Standing
) -> tuple[list[Comparison], list[Comparison]]:
    """Return the points with a limit of some standing, and the others."""
    with_it, without = [], []
    for point in points:
        (with_it if point.limits_that_are(standing) else without).append(point)
    return with_it, without


def _limit_names(points: Sequence[Comparison], standing: Standing) -> str:
    names = set()
    for point in points:
        names |= {limit_name(name) for name in point.limits_that_are(standing)}
    return listed(sorted(names))


def _spread(points: Sequence[Comparison]) -> str:
    """Return the speedup with its interval, or the range over several loads."""
    gains = [point.gain for point in points if point.gain is not None]
    if not gains:
        return "without a speedup (nothing of what was measured can be compared)"
    if len(gains) == 1:
        return times(gains[0])
    values = [gain.value for gain in gains]
    bounds = [bound for gain in gains for bound in gain.interval or ()]
    spread = " (no intervals)"
    if bounds:
        spread = f" (95% intervals within {min(bounds):.2f} to {max(bounds):.2f})"
    return f"{min(values):.2f} to {max(values):.2f} times as fast{spread}"


def _where(points: Sequence[Comparison], decision: Decision) -> str:
    loads = loads_listed([point.load for point in points])
    if len(points) == len(decision.points) and len(points) > 1:
        return f"at every load measured ({loads})"
    return f"at {loads}"


def _table(decision: Decision, requirements: Requirements) -> TextTable:
    shown = []
    for name in dict.fromkeys(("ttft_p99", "tpot_p99", *requirements.limits)):
        if any(point.speculative[name] for point in decision.points):
            shown.append(name)
    rows = []
    for point in decision.points:
        cells = [point.load.label, interval(point.gain), _verdict(point), _best(decision, point)]
        for name in shown:
            if point.both_overloaded or point.speculative[name] is None:
                cells.append(NOTHING)
            else:
                before, after = (seconds(side.value(name)) for side in point.sides)
                cells.append(f"{before} → {after}")
        rows.append(cells)
    names = [f"{limit_name(name)}, plain → this" for name in shown]
    return TextTable(["Load", "Speedup", "Verdict", "Best measured there", *names], rows)


def _verdict(point: Comparison) -> str:
    if point.output.is_wrong:
        return "wrong output"
    is_broken = point.limits_that_are(Standing.BROKEN)
    words = "breaks a limit" if is_broken else point.outcome.value
    return f"{words} (overloaded)" if point.any_overloaded else words


def _best(decision: Decision, point: Comparison) -> str:
    """Return the best choice at the load of a point."""
    best = decision.best_at(point.load)
    if best.gain is None:
        return NOTHING
    if useful_gain(best) < 1:
        return "plain decoding"
    if best.setting == decision.setting:
        return "this setting"
    label = best.setting.label.removeprefix(f"{decision.setting.method}, ")
    return f"{label}: {inline(best.gain)}"
