"""A decision in words: the answer, the speedups behind it, and a table by load."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.decision import Answer, Decision, Outcome, Point, useful_gain
from specresearch.reporting.drawing import Table
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
from specresearch.reporting.limits import Limits

RULE_OF_THUMB = (
    "Rule of thumb from the field, not from these runs: below an acceptance rate of about 0.5 "
    "speculation usually costs time, 0.5 to 0.65 is about break-even and wants a load test, above "
    "0.65 it usually pays. The measured speedup decides."
)
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
class Verdict:
    """A decision in words.

    Attributes:
        headline: The answer with its bound.
        reason: The speedups that it rests on.
        findings: In the order of a reader's questions.
    """

    decision: Decision
    headline: str
    reason: str
    findings: tuple[Finding, ...]
    table: Table

    @property
    def spread(self) -> str:
        """Return the recommended setting's speedups, for an overview."""
        return _spread(self.decision.points)

    @property
    def name(self) -> str:
        """Return the answer's name, for its colour."""
        return self.decision.answer.name.lower()


def explain(decision: Decision, limits: Limits) -> Verdict:
    """Return a decision in words."""
    return Verdict(
        decision=decision,
        headline=_headline(decision, limits),
        reason=_reason(decision, limits),
        findings=tuple(found for found in findings(decision, limits) if found.lines),
        table=_table(decision, limits),
    )


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return the answer of the whole report."""
    if len(verdicts) == 1:
        (verdict,) = verdicts
        if verdict.decision.answer not in ON:
            return verdict.headline
        return f"{verdict.headline}: {verdict.decision.policy.phrase}"
    counts = {}
    for answer in Answer:
        num = sum(verdict.decision.answer is answer for verdict in verdicts)
        counts |= {answer: num} if num else {}
    num_workloads = len({verdict.decision.workload for verdict in verdicts})
    if len(counts) == 1:
        (answer,) = counts
        if num_workloads == 1:
            return f"{answer.value}: at every kind of load measured"
        return f"{answer.value}: all {num_workloads} workloads measured"
    where = f"in {{}} of {len(verdicts)} cases"
    if num_workloads == len(verdicts):
        subject, where = "workload", "for {}"
    elif num_workloads == 1:
        subject = "kind of load"
    else:
        subject = "workload and the kind of load"
    answers = []
    for answer, num in counts.items():
        answers.append(f"{answer.value[0].lower()}{answer.value[1:]} {where.format(num)}")
    return f"It depends on the {subject}: {listed(answers)}"


def _headline(decision: Decision, limits: Limits) -> str:
    answer = decision.answer
    if answer is Answer.BELOW:
        assert decision.last_faster is not None
        assert decision.first_slower is not None
        last, first = decision.last_faster.label, decision.first_slower.amount_label
        return f"Turn it on up to {last}, off from {first}"
    if answer is Answer.SOME:
        faster = [point.load.amount_label for point in decision.with_outcome(Outcome.FASTER)]
        return f"Turn it on at {listed(faster)} {decision.unit} only"
    if answer is not Answer.MEASURE:
        return answer.value
    if len(decision.with_outcome(Outcome.UNCLEAR)) < len(decision.points):
        return "Measure under load before turning it on"
    if any(point.doubtful for point in decision.points):
        return "Measure more: a limit may be broken"
    if limits.worth != 1:
        return f"Measure more: it cannot be told yet whether it is {limits.worth:g} times as fast"
    return "Measure more: no difference from plain decoding can be told yet"


def _reason(decision: Decision, limits: Limits) -> str:
    policy = decision.policy.phrase
    if any(point.comparison.output.is_wrong for point in decision.points):
        return f"{policy} {WRONG_OUTPUT}"
    if decision.answer is not Answer.MEASURE:
        return _sentences(decision, limits)
    faster = decision.with_outcome(Outcome.FASTER)
    if faster:
        return f"{policy} is {_spread(faster)} {SINGLE_ONLY}"
    return f"{_sentences(decision, limits)} {MORE_PROMPTS}"


def _sentences(decision: Decision, limits: Limits) -> str:
    """Return a sentence for the points of each outcome and reason."""
    slower, unclear = (decision.with_outcome(o) for o in (Outcome.SLOWER, Outcome.UNCLEAR))
    losing = [point for point in slower if not point.broken]
    gains = [point.comparison.gain for point in losing]
    below = f"below {limits.worth:g}, the least worth having"
    if all(gain is not None and gain.is_below(1.0) for gain in gains):
        below = "slower than plain decoding"
    faster, broken = decision.with_outcome(Outcome.FASTER), [p for p in slower if p.broken]
    close, doubtful = ([p for p in unclear if bool(p.doubtful) is is_it] for is_it in (False, True))
    clauses = [
        (faster, f"is {_spread(faster)}", ""),
        (broken, f"breaks a limit that plain decoding keeps ({_limit_names(broken)})", ""),
        (losing, f"is only {_spread(losing)}, {below},", ""),
        (
            close,
            f"is {_spread(close)}",
            ": too close, or too little measured, to say on which side of "
            f"{limits.worth:g} it lies",
        ),
        (doubtful, f"may break a limit that plain decoding keeps ({_limit_names(doubtful)})", ""),
    ]
    sentences, subject = [], decision.policy.phrase
    for points, before, after in clauses:
        if points:
            sentences.append(f"{subject} {before} {_where(points, decision)}{after}.")
            subject = "It"
    return " ".join(sentences)


def _limit_names(points: Sequence[Point]) -> str:
    names = set()
    for point in points:
        names |= {limit_name(name) for name in point.broken or point.doubtful}
    return listed(sorted(names))


def _spread(points: Sequence[Point]) -> str:
    """Return the speedup with its interval, or the range over several loads."""
    gains = [point.comparison.gain for point in points if point.comparison.gain is not None]
    if not gains:
        return "without a speedup (nothing of what was measured can be compared)"
    if len(gains) == 1:
        return times(gains[0])
    values = [gain.value for gain in gains]
    bounds = [bound for gain in gains if gain.interval is not None for bound in gain.interval]
    spread = " (no intervals)"
    if bounds:
        spread = f" (95% intervals within {min(bounds):.2f} to {max(bounds):.2f})"
    return f"{min(values):.2f} to {max(values):.2f} times as fast{spread}"


def _where(points: Sequence[Point], decision: Decision) -> str:
    loads = loads_listed([point.load for point in points])
    if len(points) == len(decision.points) and len(points) > 1:
        return f"at every load measured ({loads})"
    return f"at {loads}"


def _table(decision: Decision, limits: Limits) -> Table:
    shown = []
    for name in dict.fromkeys(("ttft_p99", "tpot_p99", *limits.given())):
        if any(point.comparison.speculative[name] for point in decision.points):
            shown.append(name)
    rows = []
    for point in decision.points:
        comparison = point.comparison
        cells = [point.load.label, interval(comparison.gain), point.verdict]
        cells.append(_best(decision, point))
        for name in shown:
            if comparison.both_overloaded or comparison.speculative[name] is None:
                cells.append(NOTHING)
            else:
                before, after = (seconds(side.value(name)) for side in comparison.sides)
                cells.append(f"{before} → {after}")
        rows.append(tuple(cells))
    names = [f"{limit_name(name)}, plain → this" for name in shown]
    return Table(("Load", "Speedup", "Verdict", "Best measured there", *names), tuple(rows))


def _best(decision: Decision, point: Point) -> str:
    """Return the best choice at the load of a point."""
    best = max(decision.at(point.load), key=useful_gain)
    policy, gain = best.comparison.policy, best.comparison.gain
    if gain is None:
        return NOTHING
    if useful_gain(best) < 1:
        return "plain decoding"
    if policy == decision.policy:
        return "this setting"
    return f"{policy.label.removeprefix(f'{decision.policy.method}, ')}: {inline(gain)}"
