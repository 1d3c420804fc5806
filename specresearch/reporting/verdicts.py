"""A decision in plain words: the sentence that answers, the speedups behind it, and a table by load."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.comparisons import Output, Policy
from specresearch.reporting.decision import Answer, Decision, Limits, Outcome, Point
from specresearch.reporting.drawing import Table
from specresearch.reporting.facts import Fact, facts
from specresearch.reporting.wording import NOTHING, inline, interval, limit_name, listed, loads_listed, seconds, times

RULE_OF_THUMB = (
    "Rule of thumb from the field, not from these runs: below an acceptance rate of about 0.5 speculation usually costs time, "
    "0.5 to 0.65 is about break-even and wants a load test, above 0.65 it usually pays. The measured speedup decides."
)


@dataclass(frozen=True)
class Verdict:
    """headline: the answer with its bound. reason: the speedups it rests on. facts: in the order of a reader's questions."""

    decision: Decision
    headline: str
    reason: str
    facts: tuple[Fact, ...]
    table: Table

    @property
    def spread(self) -> str:
        """The recommended setting's speedups, for an overview."""
        return _spread(self.decision.points)

    @property
    def name(self) -> str:
        """Of the answer, for its colour."""
        return self.decision.answer.name.lower()


def word(decision: Decision, limits: Limits) -> Verdict:
    return Verdict(
        decision,
        _headline(decision),
        _reason(decision, limits),
        tuple(fact for fact in facts(decision, limits) if fact.lines),
        _table(decision, limits),
    )


def headline(verdicts: Sequence[Verdict]) -> str:
    """Of the whole report."""
    if len(verdicts) == 1:
        own = verdicts[0]
        is_on = own.decision.answer in (Answer.ON, Answer.BELOW, Answer.SOME)
        return f"{own.headline}: {own.decision.policy.phrase}" if is_on else own.headline
    by_answer: dict[Answer, list[Verdict]] = {}
    for answer in Answer:
        own = [verdict for verdict in verdicts if verdict.decision.answer is answer]
        if own:
            by_answer[answer] = own
    if len(by_answer) == 1:
        (answer,) = by_answer
        return f"{answer.value}: all {len(verdicts)} workloads measured"
    return "It depends on the workload: " + listed(
        [f"{answer.value[0].lower()}{answer.value[1:]} for {len(own)}" for answer, own in by_answer.items()]
    )


def _headline(decision: Decision) -> str:
    unit, answer = decision.points[0].load.unit, decision.answer
    if answer is Answer.BELOW:
        assert decision.last_faster is not None
        assert decision.first_slower is not None
        return f"Turn it on up to {decision.last_faster.label}, off from {decision.first_slower.amount_label}"
    if answer is Answer.SOME:
        faster = [p.load.amount_label for p in decision.points if p.outcome is Outcome.FASTER]
        return f"Turn it on at {listed(faster)} {unit} only"
    if answer is Answer.MEASURE and _is_unclear(decision):
        return "Measure more: no difference from plain decoding can be told yet"
    if answer is Answer.MEASURE:
        return "Measure under load before turning it on"
    return answer.value


def _is_unclear(decision: Decision) -> bool:
    return all(point.outcome is Outcome.UNCLEAR for point in decision.points)


def _reason(decision: Decision, limits: Limits) -> str:
    own = decision.policy.phrase
    groups = {outcome: [p for p in decision.points if p.outcome is outcome] for outcome in Outcome}
    faster, slower, unclear = (groups[outcome] for outcome in Outcome)
    if any(p.comparison.output_is is Output.WRONG for p in decision.points):
        return f"{own} changes greedy output, which an exact method must not; find out why before anything else."
    if decision.answer is Answer.MEASURE and unclear == list(decision.points):
        return (
            f"{own} is {_spread(unclear)} {_where(unclear, decision)}: too close, or too little measured, to say on which side "
            f"of {limits.worth:g} it lies. More prompts or repeats narrow the interval."
        )
    if decision.answer is Answer.MEASURE:
        return (
            f"{own} is {_spread(faster)} for one request at a time. With several at once the target has less time to spare, and "
            "speculation that pays for one request often costs time then; nothing was measured there."
        )
    sentences = []
    if faster:
        sentences.append(f"{own} is {_spread(faster)} {_where(faster, decision)}.")
    if slower:
        sentences.append(f"{'It' if faster else own} {_why_slower(slower)} {_where(slower, decision)}.")
    if unclear:
        where = _where(unclear, decision)
        sentences.append(f"{where[0].upper()}{where[1:]} it cannot be told from plain decoding: {_spread(unclear)}.")
    return " ".join(sentences)


def _why_slower(points: Sequence[Point]) -> str:
    if all(point.broken for point in points):
        return f"breaks a limit that plain decoding keeps ({listed(sorted({limit_name(n) for p in points for n in p.broken}))})"
    return f"is only {_spread(points)}, slower than plain decoding,"


def _spread(points: Sequence[Point]) -> str:
    """`1.52 times as fast (95% interval 1.40 to 1.63)`, or the range over several loads."""
    gains = [point.comparison.gain for point in points if point.comparison.gain is not None]
    if not gains:
        return "without a speedup (nothing of what was measured can be compared)"
    if len(gains) == 1:
        return times(gains[0])
    low, high = min(gain.value for gain in gains), max(gain.value for gain in gains)
    bounds = [b for gain in gains for b in (gain.low, gain.high) if b is not None]
    spread = f" (95% intervals within {min(bounds):.2f} to {max(bounds):.2f})" if bounds else " (no intervals)"
    return f"{low:.2f} to {high:.2f} times as fast{spread}"


def _where(points: Sequence[Point], decision: Decision) -> str:
    if len(points) == len(decision.points) and len(points) > 1:
        return f"at every load measured ({loads_listed([p.load for p in points])})"
    return f"at {loads_listed([p.load for p in points])}"


def _table(decision: Decision, limits: Limits) -> Table:
    own = decision.policy
    shown = [
        name
        for name in ("ttft_p99", "tpot_p99", *limits.given())
        if any(p.comparison.own[name] for p in decision.points)
    ]
    shown = list(dict.fromkeys(shown))
    rows = []
    for point in decision.points:
        cells = [point.load.label, interval(point.comparison.gain), point.verdict]
        best = max(decision.at(point.load), key=lambda p: p.comparison.gain.value if p.comparison.gain else 0.0)
        gain = best.comparison.gain
        is_own = best.comparison.policy == own
        other = f"{_short(best.comparison.policy, own)}: {inline(gain)}"
        if gain is None:
            cells.append(NOTHING)
        else:
            cells.append("plain decoding" if gain.value < 1 else "this setting" if is_own else other)
        for name in shown:
            plain, fast = point.comparison.plain[name], point.comparison.own[name]
            cells.append(
                f"{seconds(plain.value if plain else None)} → {seconds(fast.value if fast else None)}"
                if fast and not point.comparison.neither_keeps_up
                else NOTHING
            )
        rows.append(tuple(cells))
    return Table(
        ("Load", "Speedup", "Verdict", "Best measured there", *(f"{limit_name(name)}, plain → this" for name in shown)),
        tuple(rows),
    )


def _short(policy: Policy, own: Policy) -> str:
    return policy.label.removeprefix(f"{own.method}, ")
