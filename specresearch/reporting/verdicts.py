"""A decision in plain words: the sentence that answers, the speedups behind it, and a table by load."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specresearch.reporting.comparisons import Policy
from specresearch.reporting.decision import Answer, Decision, Limits, Outcome, Point, useful_gain
from specresearch.reporting.drawing import Table
from specresearch.reporting.facts import Fact, facts
from specresearch.reporting.wording import (
    NOTHING,
    inline,
    interval,
    limit_name,
    listed,
    loads_listed,
    seconds,
    times,
)

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
        _headline(decision, limits),
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
    num_workloads = len({verdict.decision.workload for verdict in verdicts})
    are_workloads = num_workloads == len(verdicts)
    if len(by_answer) == 1:
        (answer,) = by_answer
        return f"{answer.value}: " + (
            "at every kind of load measured"
            if num_workloads == 1
            else f"all {num_workloads} workloads measured"
        )
    on = (
        "workload"
        if are_workloads
        else "kind of load"
        if num_workloads == 1
        else "workload and the kind of load"
    )
    what = "for {}" if are_workloads else f"in {{}} of {len(verdicts)} cases"
    return f"It depends on the {on}: " + listed(
        [
            f"{a.value[0].lower()}{a.value[1:]} {what.format(len(own))}"
            for a, own in by_answer.items()
        ]
    )


def _headline(decision: Decision, limits: Limits) -> str:
    unit, answer = decision.points[0].load.unit, decision.answer
    if answer is Answer.BELOW:
        assert decision.last_faster is not None
        assert decision.first_slower is not None
        return f"Turn it on up to {decision.last_faster.label}, off from {decision.first_slower.amount_label}"
    if answer is Answer.SOME:
        faster = [p.load.amount_label for p in decision.points if p.outcome is Outcome.FASTER]
        return f"Turn it on at {listed(faster)} {unit} only"
    if answer is Answer.MEASURE and _is_unclear(decision):
        if any(point.doubtful for point in decision.points):
            return "Measure more: a limit may be broken"
        if limits.worth != 1:
            return (
                f"Measure more: it cannot be told yet whether it is {limits.worth:g} times as fast"
            )
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
    if any(p.comparison.output.is_wrong for p in decision.points):
        return f"{own} changes the target's output, which an exact method must not; find out why before anything else."
    if decision.answer is Answer.MEASURE and unclear == list(decision.points):
        return f"{_sentences([], [], unclear, decision, limits)} More prompts or repeats narrow the interval."
    if decision.answer is Answer.MEASURE:
        return (
            f"{own} is {_spread(faster)} for one request at a time. With several at once the target has less time to spare, and "
            "speculation that pays for one request often costs time then; nothing was measured there."
        )
    return _sentences(faster, slower, unclear, decision, limits)


def _sentences(
    faster: Sequence[Point],
    slower: Sequence[Point],
    unclear: Sequence[Point],
    decision: Decision,
    limits: Limits,
) -> str:
    """One for the points of each outcome and reason, where there are any."""
    broken, losing = [p for p in slower if p.broken], [p for p in slower if not p.broken]
    doubtful, close = [p for p in unclear if p.doubtful], [p for p in unclear if not p.doubtful]
    is_slower = all(
        p.comparison.gain is not None and p.comparison.gain.is_below(1.0) for p in losing
    )
    below = (
        "slower than plain decoding"
        if is_slower
        else f"below {limits.worth:g}, the least worth having"
    )
    side = f"too close, or too little measured, to say on which side of {limits.worth:g} it lies"
    told = [
        (faster, f"is {_spread(faster)}", ""),
        (
            broken,
            f"breaks a limit that plain decoding keeps ({_names(p.broken for p in broken)})",
            "",
        ),
        (losing, f"is only {_spread(losing)}, {below},", ""),
        (close, f"is {_spread(close)}", f": {side}"),
        (
            doubtful,
            f"may break a limit that plain decoding keeps ({_names(p.doubtful for p in doubtful)})",
            "",
        ),
    ]
    words = [
        f"{before} {_where(points, decision)}{after}" for points, before, after in told if points
    ]
    return " ".join(
        f"{'It' if number else decision.policy.phrase} {text}." for number, text in enumerate(words)
    )


def _names(limits: Iterable[Sequence[str]]) -> str:
    return listed(sorted({limit_name(name) for names in limits for name in names}))


def _spread(points: Sequence[Point]) -> str:
    """`1.52 times as fast (95% interval 1.40 to 1.63)`, or the range over several loads."""
    gains = [point.comparison.gain for point in points if point.comparison.gain is not None]
    if not gains:
        return "without a speedup (nothing of what was measured can be compared)"
    if len(gains) == 1:
        return times(gains[0])
    low, high = min(gain.value for gain in gains), max(gain.value for gain in gains)
    bounds = [b for gain in gains for b in (gain.low, gain.high) if b is not None]
    spread = (
        f" (95% intervals within {min(bounds):.2f} to {max(bounds):.2f})"
        if bounds
        else " (no intervals)"
    )
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
        best = max(decision.at(point.load), key=useful_gain)
        gain = best.comparison.gain
        is_own = best.comparison.policy == own
        other = f"{_short(best.comparison.policy, own)}: {inline(gain)}"
        if gain is None:
            cells.append(NOTHING)
        else:
            cells.append(
                "plain decoding" if useful_gain(best) < 1 else "this setting" if is_own else other
            )
        for name in shown:
            plain, fast = point.comparison.plain[name], point.comparison.own[name]
            cells.append(
                f"{seconds(plain.value if plain else None)} → {seconds(fast.value if fast else None)}"
                if fast and not point.comparison.neither_keeps_up
                else NOTHING
            )
        rows.append(tuple(cells))
    return Table(
        (
            "Load",
            "Speedup",
            "Verdict",
            "Best measured there",
            *(f"{limit_name(name)}, plain → this" for name in shown),
        ),
        tuple(rows),
    )


def _short(policy: Policy, own: Policy) -> str:
    return policy.label.removeprefix(f"{own.method}, ")
