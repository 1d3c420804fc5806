"""The facts that a decision rests on, in plain words and each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.reporting.comparisons import BATCH, ClassChange, Load
from specresearch.reporting.decision import Answer, Decision, Limits, Outcome, Point
from specresearch.reporting.estimates import Estimate
from specresearch.reporting.wording import (
    count,
    inline,
    interval,
    limit_name,
    listed,
    loads_listed,
    seconds,
    seconds_inline,
    seconds_with_interval,
)

COSTS, PAYS = 0.5, 0.65  # acceptance rates, by rule of thumb
FEW = 100  # requests, of which a 99th percentile is an extreme


@dataclass(frozen=True)
class Fact:
    """lines: of text, one below the other; none: the fact is left out. command: what to type, shown as such."""

    term: str
    lines: tuple[str, ...]
    command: str = ""

    @staticmethod
    def of(term: str, text: str) -> "Fact":
        return Fact(term, (text,) if text else ())


def facts(decision: Decision, limits: Limits) -> list[Fact]:
    return [
        Fact.of("Crosses over", _crossover(decision)),
        _length(decision),
        _limits(decision, limits),
        Fact.of("Keeping up", _behind(decision)),
        _slowest(decision),
        _classes(decision),
        _acceptance(decision),
        Fact.of("Output", _output(decision)),
        _next(decision),
        Fact.of("Evidence", _evidence(decision)),
    ]


def _crossover(decision: Decision) -> str:
    points, unit = decision.points, decision.points[0].load.unit
    if any(point.comparison.output.is_wrong for point in points):
        return ""
    if decision.last_faster is not None and decision.first_slower is not None:
        between = f"between {decision.last_faster.amount_label} and {decision.first_slower.amount_label} {unit}"
        unclear = [
            p
            for p in points
            if p.outcome is Outcome.UNCLEAR
            and decision.last_faster < p.load < decision.first_slower
        ]
        gains = [f"{p.load.amount_label}: {inline(p.comparison.gain)}" for p in unclear]
        return between + (f"; in between it cannot be told ({'; '.join(gains)})" if gains else "")
    if len(points) == 1:
        return f"not known: measured at {points[0].load.label} only"
    if decision.answer is Answer.ON:
        told = max(p.load for p in points if p.outcome is Outcome.FASTER)
        above = [
            f"{p.load.amount_label}: {inline(p.comparison.gain)}" for p in points if p.load > told
        ]
        if above:
            return f"not up to {told.label}; above that it cannot be told ({'; '.join(above)})"
        return f"not up to {told.label}, the highest load measured"
    if decision.answer is Answer.OFF:
        return _below(min(p.load for p in points if p.outcome is Outcome.SLOWER), points)
    return "no single load: see the table"


def _below(first: Load, points: Sequence[Point]) -> str:
    """Of a setting that is slower from `first` on, and faster nowhere."""
    if first.is_single:
        return f"nowhere: it does not pay at {first.label} already"
    unclear = [
        f"{p.load.amount_label}: {inline(p.comparison.gain)}" for p in points if p.load < first
    ]
    if unclear:
        return f"below {first.label}, if anywhere; there it cannot be told ({'; '.join(unclear)})"
    return f"below {first.label}, the lowest load measured, if anywhere"


def _length(decision: Decision) -> Fact:
    own, lengths = decision.policy, decision.fixed_lengths
    lines, command = [], ""
    if not own.is_fixed:
        chosen = [
            (p.load.amount_label, p.comparison.own["mean_draft_length"]) for p in decision.points
        ]
        told = [f"{figure.value:.1f} at {load}" for load, figure in chosen if figure is not None]
        lines.append(
            "The controller chooses"
            + (f": on average {listed(told)} {decision.points[0].load.unit}" if told else "")
            + "."
        )
    if len(lengths) > 1:
        best = [point for point in map(decision.best_fixed, decision.loads) if point is not None]
        found = [
            f"{p.comparison.policy.length} at {p.load.amount_label} ({inline(p.comparison.gain)})"
            for p in best
        ]
        measured = listed([str(length) for length in lengths])
        lines.append(
            f"Of the fixed lengths {measured}, best in hindsight: {listed(found)}.{_ties(decision)}"
        )
    elif own.is_fixed and own.length is not None:
        lines.append(f"{own.length}, the only one measured. To compare others, add")
        command = (
            "-m proposer.num_draft_tokens=2,4,8" if decision.axis == BATCH else '"compare=[2,4,8]"'
        )
    return Fact("Draft length", tuple(lines), command)


def _ties(decision: Decision) -> str:
    """Lengths that the lowest load cannot tell from the best."""
    best = decision.best_fixed(decision.loads[0])
    if best is None or best.comparison.gain is None or best.comparison.gain.low is None:
        return ""
    low, own = best.comparison.gain.low, best.comparison.policy
    policies = [
        p.comparison for p in decision.at(decision.loads[0]) if p.comparison.policy.is_fixed
    ]
    alike = {
        c.policy.length or 0
        for c in policies
        if c.policy.method == own.method and _high(c.gain) >= low
    } - {own.length}
    words = listed([str(length) for length in sorted(alike)])
    return (
        f" At {best.load.amount_label}, {words} cannot be told from {own.length}." if alike else ""
    )


def _high(gain: Estimate | None) -> float:
    return 0.0 if gain is None else gain.value if gain.high is None else gain.high


def _limits(decision: Decision, limits: Limits) -> Fact:
    given = limits.given()
    if not given:
        return Fact.of(
            "Your limits", "None given: --ttft and --tpot (seconds) hold the figures against yours."
        )
    source = f", {limits.source}" if limits.source else ""
    lines = [
        f"{limit_name(name)} at most {seconds(limit)}{source}: {_kept(decision, name)}."
        for name, limit in given.items()
    ]
    return Fact("Your limits", tuple(lines))


def _kept(decision: Decision, name: str) -> str:
    """At which loads the limit is kept, and how it is broken at the others."""
    words = {
        "broken": "broken, though plain decoding keeps it,",
        "doubtful": "perhaps broken, though plain decoding keeps it,",
        "hopeless": "broken, by plain decoding too,",
        "kept": "kept, though plain decoding breaks it,",
    }
    lost = [p.load for p in decision.points if p.comparison.neither_keeps_up]
    told, mentioned = [], set(lost)
    for which, what in words.items():
        points = [p for p in decision.points if name in getattr(p, which)]
        mentioned |= {p.load for p in points}
        figures = [
            f"{p.load.amount_label} ({seconds_inline(p.comparison.own[name])})" for p in points
        ]
        told += [f"{what} at {listed(figures)}"] if points else []
    unknown = [
        p.load.amount_label
        for p in decision.points
        if p.comparison.own[name] is None and p.load not in mentioned
    ]
    rest = [
        p.load
        for p in decision.points
        if p.load not in mentioned and p.comparison.own[name] is not None
    ]
    told += [f"kept at {loads_listed(rest)}"] if rest else []
    told += [f"not measured at {listed(unknown)}"] if unknown else []
    told += [f"not compared at {loads_listed(lost)}, where neither side keeps up"] if lost else []
    return "; ".join(told)


def _behind(decision: Decision) -> str:
    plain = [p.load.amount_label for p in decision.points if p.comparison.is_plain_behind]
    own = [p.load.amount_label for p in decision.points if p.comparison.is_behind]
    if not plain and not own:
        return ""
    words = [
        f"{who} could not answer {listed(loads)}"
        for who, loads in (("plain decoding", plain), ("the method", own))
        if loads
    ]
    return (
        f"{'; '.join(words)} {decision.points[0].load.unit}: the queue grew. What each side can do, its throughput, is compared "
        "there, and not how long requests waited."
    )


def _slowest(decision: Decision) -> Fact:
    """The 99th percentile of time per output token, at the lowest and the highest load where it is known."""
    told, few = [], FEW
    for point in decision.points:
        plain, own = point.comparison.plain["tpot_p99"], point.comparison.own["tpot_p99"]
        if not point.comparison.neither_keeps_up and plain is not None and own is not None:
            figures = f"{seconds_with_interval(plain)} became {seconds_with_interval(own)}: {_change(plain, own)}."
            told.append(f"At {point.load.label}, {figures}")
            few = min(few, point.comparison.num_requests)
    if not told:
        return Fact("Slowest requests", ())
    note = f" With only {few} requests that is nearly the slowest of all." if few < FEW else ""
    lines = (
        f"Time per token of the slowest in a hundred (TPOT P99).{note}",
        *(told if len(told) <= 2 else (told[0], told[-1])),
    )
    return Fact("Slowest requests", lines)


def _classes(decision: Decision) -> Fact:
    """Which classes of a mixed workload get faster and which slower, at the lowest and the highest load where they are known."""
    known = [point for point in decision.points if point.comparison.classes]
    lines = []
    for point in known if len(known) <= 2 else (known[0], known[-1]):
        told = [words for words in map(_of_class, point.comparison.classes) if words]
        lines += [f"At {point.load.label}: {'; '.join(told)}."] if told else []
    if not lines:
        return Fact("Who pays", ())
    return Fact(
        "Who pays",
        ("Time per token of each class over plain decoding's, median and 99th percentile.", *lines),
    )


def _of_class(change: ClassChange) -> str:
    """`creative slower (1.10, 1.05 to 1.15; 1.30, 1.10 to 1.52)`; "" where a side lacks its figures."""
    median, slowest = change.median, change.slowest
    if median is None or slowest is None:
        return ""
    better, worse = (
        any(told)
        for told in (
            [r.is_below(1.0) for r in (median, slowest)],
            [r.is_above(1.0) for r in (median, slowest)],
        )
    )
    if change.has_signature:
        says = "faster at the median and slower among its slowest requests"
    elif better and worse:
        says = "slower at the median and faster among its slowest requests"
    else:
        says = "faster" if better else "slower" if worse else "no clear change"
    return f"{change.name} {says} ({inline(median)}; {inline(slowest)})"


def _change(plain: Estimate, own: Estimate) -> str:
    if own.low is None or own.high is None or plain.low is None or plain.high is None:
        return "without an interval"
    return (
        "worse" if own.low > plain.high else "better" if own.high < plain.low else "no clear change"
    )


def _acceptance(decision: Decision) -> Fact:
    told = decision.points[0].comparison.own.acceptance
    if told is None or told.rate is None:
        return Fact("Acceptance", ())
    rate = told.rate.value
    says = (
        "usually costs time"
        if rate < COSTS
        else "usually pays"
        if rate > PAYS
        else "is about break-even"
    )
    at = f" at {decision.points[0].load.label}" if len(decision.points) > 1 else ""
    lines = [
        f"{interval(told.rate)} of the drafts were accepted{at}; by rule of thumb that {says}, and the speedup decides."
    ]
    if told.p10 is not None:
        lines.append(
            f"The tenth of the requests with the least acceptance lies below {interval(told.p10)}."
        )
    return Fact("Acceptance", tuple(lines))


def _output(decision: Decision) -> str:
    """One sum over all loads at which nothing changed; what else is known in its own words."""
    found = [point.comparison.output for point in decision.points]
    num_equal = sum(output.num_equal for output in found)
    unchanged = f"unchanged: {num_equal} of {num_equal} greedy outputs equal plain decoding's token for token"
    others = dict.fromkeys(output.words for output in found if not output.num_equal)
    return "; ".join([*([unchanged] if num_equal else []), *filter(None, others)])


def _next(decision: Decision) -> Fact:
    """What acts on the answer, or the next measurement."""
    data, method, last = decision.workload.data, decision.policy.method, decision.last_faster
    if (
        decision.answer is Answer.BELOW
        and last is not None
        and last.is_closed
        and decision.policy.is_fixed
    ):
        text = "Turn it off above that load by the number of running requests, or let controller=goodput decide:"
        length = decision.policy.length
        drafts = "" if length is None else f" controller.num_draft_tokens={length}"
        command = f"controller=batch_size_cutoff controller.max_requests={last.amount:.0f}{drafts}"
        return Fact("How to", (text,), command)
    if decision.answer in (Answer.BELOW, Answer.SOME) and decision.policy.is_fixed:
        text = "Let a controller decide at every step how much to draft, and measure it at the same loads:"
        return Fact("How to", (text,), "controller=goodput")
    if decision.answer is Answer.MEASURE and decision.axis == BATCH:
        load = "arrivals=closed_loop arrivals.concurrency=1,4,8,16"
        command = f"python -m specresearch.load -m +proposer={method} dataset={data} {load}"
        return Fact(
            "Next",
            ("Measure it under load, with a controller that drafts only where it pays:",),
            command,
        )
    has_controller = any(
        not point.comparison.policy.is_fixed for point in (*decision.points, *decision.others)
    )
    if decision.answer is Answer.OFF and not has_controller:
        text = "Before giving up, measure a controller that drafts only where it pays:"
        return Fact("Next", (text,), "controller=goodput")
    return Fact("Next", ())


def _evidence(decision: Decision) -> str:
    folders = {
        folder
        for p in decision.points
        for folder in (p.comparison.folder, *p.comparison.pooled_with)
    }
    requests = sum(point.comparison.num_requests for point in decision.points)
    unfinished = sum(not point.comparison.is_complete for point in decision.points)
    how = (
        "interleaved"
        if all(point.comparison.is_interleaved for point in decision.points)
        else "measured"
    )
    text = f"{count(requests, 'request')} on each side, {count(len(folders), 'folder')}, plain decoding {how} in each"
    num = decision.points[0].comparison.num_compared
    together = (
        f"; the intervals of the speedups hold together for all {num} settings and loads compared"
        if num > 1
        else ""
    )
    return text + (f"; {unfinished} unfinished" if unfinished else "") + together
