"""Turn it on, measure under load, or turn it off: from speedups with intervals and the user's limits, by stated rules."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from specresearch.reporting.comparisons import BATCH, Comparison, Load, Policy, Workload
from specresearch.reporting.estimates import Estimate
from specresearch.reporting.repeats import pooled_by_setting

RULES = {
    "interval of a speedup": "95% for all settings and loads of a decision together (Bonferroni): the best of many settings "
    "looks faster than it is, and so each is held to 5% / (settings x loads measured). Other workloads and kinds of load are "
    "decisions of their own. Runs of one setting at one load are pooled; those of the same prompts do not make it narrower",
    "faster": "the whole interval of the speedup lies above the least speedup that is worth it (1 unless told otherwise), or "
    "includes it and a limit is kept that plain decoding breaks",
    "slower": "the whole interval lies below it, or a limit is broken that plain decoding keeps, or the output is wrong",
    "cannot tell": "anything else: the interval includes it, too little was measured for an interval, or a limit that plain "
    "decoding keeps may be broken",
    "overloaded": "requests came faster than a side answered them. What each side can do, its throughput, is compared there, and "
    "not the latencies of the requests that got through; limits count only where one of the sides keeps up",
    "turn it on": "faster at one load at least, slower at none, and measured with more than one request at a time",
    "turn it on up to a load": "as above, but slower from some load on; what lies between the last load at which it is faster "
    "and the first at which it is slower is where it crosses over",
    "turn it on at some loads": "faster at some loads and slower at others, in no order that one bound describes",
    "measure under load": "faster for one request at a time and measured at nothing else, or no load at which one can tell",
    "turn it off": "slower somewhere and faster nowhere, or its output is wrong",
    "the setting recommended": "of all measured at most loads, the one whose largest loss against the best choice at any of "
    "them, plain decoding included, is smallest; one that breaks a limit, changes the output, or falls behind where plain "
    "decoding does not, is worth nothing there",
}


class Outcome(Enum):
    FASTER, SLOWER, UNCLEAR = "faster", "slower", "cannot tell"


class Answer(Enum):
    ON = "Turn it on"
    BELOW = "Turn it on up to a load"
    SOME = "Turn it on at some loads"
    MEASURE = "Measure under load"
    OFF = "Turn it off"


@dataclass(frozen=True)
class Limits:
    """The user's. ttft, tpot: seconds that the `percentile`th percentile of requests must keep; None: no limit. worth: the least
    speedup for which speculation is wanted. source: where the limits come from, if not from the user directly."""

    ttft: float | None = None
    tpot: float | None = None
    percentile: int = 99
    worth: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.ttft), ("tpot", self.tpot), ("worth", self.worth)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name}={value} must be above 0")

    @staticmethod
    def of(
        ttft: float | None,
        tpot: float | None,
        percentile: int,
        worth: float,
        of_runs: Sequence[Mapping[str, float]],
    ) -> "Limits":
        """Where the user names none, those that all load runs were started with."""
        if ttft is None and tpot is None and len(of_runs) == 1:
            return Limits(
                of_runs[0].get("ttft"),
                of_runs[0].get("tpot"),
                percentile,
                worth,
                "the load runs' own",
            )
        return Limits(ttft, tpot, percentile, worth)

    def given(self) -> dict[str, float]:
        """Figure of a side -> its limit."""
        limits = {"ttft": self.ttft, "tpot": self.tpot}
        return {
            f"{name}_p{self.percentile}": limit
            for name, limit in limits.items()
            if limit is not None
        }


@dataclass(frozen=True)
class Point:
    """One comparison, judged. Of the limits, named as figures: broken, which plain decoding keeps; doubtful, which may be broken
    and plain decoding keeps; kept, which plain decoding breaks; hopeless, which both break."""

    comparison: Comparison
    outcome: Outcome
    broken: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    hopeless: tuple[str, ...] = ()

    @property
    def load(self) -> Load:
        return self.comparison.load

    @property
    def verdict(self) -> str:
        """In words."""
        if self.comparison.output.is_wrong:
            return "wrong output"
        words = "breaks a limit" if self.broken else self.outcome.value
        return f"{words} (overloaded)" if self.comparison.is_overloaded else words


@dataclass(frozen=True)
class Decision:
    """For one workload under one kind of load. points: of the recommended policy, by load. others: of the other policies.

    last_faster, first_slower: where it crosses over, for `Answer.BELOW`. is_main: False for batches of a workload that was also
    measured under arrivals or at a concurrency, which say more.
    """

    workload: Workload
    axis: str
    answer: Answer
    policy: Policy
    points: tuple[Point, ...]
    others: tuple[Point, ...]
    last_faster: Load | None = None
    first_slower: Load | None = None
    is_main: bool = True

    @property
    def loads(self) -> list[Load]:
        return sorted({point.load for point in (*self.points, *self.others)})

    def at(self, load: Load) -> list[Point]:
        return [point for point in (*self.points, *self.others) if point.load == load]

    def best_fixed(self, load: Load) -> Point | None:
        """The fixed length that was fastest there, of the recommended method."""
        own = [
            p
            for p in self.at(load)
            if p.comparison.policy.is_fixed and p.comparison.policy.method == self.policy.method
        ]
        return max(own, key=useful_gain, default=None)

    @property
    def fixed_lengths(self) -> list[int]:
        policies = {point.comparison.policy for point in (*self.points, *self.others)}
        return sorted(
            {
                p.length
                for p in policies
                if p.is_fixed and p.length and p.method == self.policy.method
            }
        )


def decide(comparisons: Sequence[Comparison], limits: Limits) -> list[Decision]:
    """One decision per workload and kind of load, in the order of the workloads' names."""
    scenes: dict[Workload, dict[str, list[Comparison]]] = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        scenes[comparison.workload][comparison.load.axis].append(comparison)
    decisions = []
    for workload, by_axis in sorted(scenes.items(), key=lambda scene: scene[0].label):
        for axis, found in by_axis.items():
            is_main = axis != BATCH or len(by_axis) == 1
            settings = pooled_by_setting(found)
            points = [
                judge(_together(comparison, len(settings)), limits) for comparison in settings
            ]
            decisions.append(_decide(workload, axis, points, is_main=is_main))
    return decisions


def _together(comparison: Comparison, num: int) -> Comparison:
    """Return the comparison with an interval that holds together with those of all others of its decision."""
    gain = comparison.gain and comparison.gain.simultaneous(num)
    return replace(comparison, gain=gain, num_compared=num)


def judge(comparison: Comparison, limits: Limits) -> Point:
    """By the speedup's interval, and by the limits."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, limit in limits.given().items():
        own, plain = comparison.own[name], comparison.plain[name]
        if own is not None and plain is not None:
            found[_standing(own, plain, limit)].append(name)
    if comparison.is_behind:  # who got through says too little
        found = defaultdict(list, {} if comparison.is_plain_behind else found | {"kept": []})
    gain = comparison.gain or Estimate(1.0)
    if comparison.output.is_wrong or found["broken"] or gain.is_below(limits.worth):
        outcome = Outcome.SLOWER
    elif (gain.is_above(limits.worth) or (found["kept"] and gain.has_interval)) and not found[
        "doubtful"
    ]:
        outcome = Outcome.FASTER
    else:
        outcome = Outcome.UNCLEAR
    return Point(
        comparison,
        outcome,
        *(tuple(found[name]) for name in ("broken", "doubtful", "kept", "hopeless")),
    )


def _standing(own: Estimate, plain: Estimate, limit: float) -> str:
    """Which of a `Point`'s lists the limit belongs to; "" where both sides keep it, or nearly."""
    if plain.value > limit:
        is_kept = own.is_below(limit) and plain.is_above(limit)
        return "kept" if is_kept else "hopeless" if own.value > limit else ""
    if own.is_above(limit):
        return "broken"
    highest = own.value if own.high is None else own.high
    return "doubtful" if highest > limit else ""


def _decide(workload: Workload, axis: str, points: Sequence[Point], *, is_main: bool) -> Decision:
    by_policy: dict[Policy, dict[Load, Point]] = defaultdict(dict)
    for point in points:
        by_policy[point.comparison.policy][point.load] = point
    policy = _recommend(by_policy)
    own = tuple(by_policy[policy][load] for load in sorted(by_policy[policy]))
    others = tuple(p for other, at in by_policy.items() if other != policy for p in at.values())
    faster = [p.load for p in own if p.outcome is Outcome.FASTER]
    slower = [p.load for p in own if p.outcome is Outcome.SLOWER]
    last, first = None, None
    if any(p.comparison.output.is_wrong for p in own):
        answer = Answer.OFF
    elif faster and slower and max(faster) < min(slower):
        answer, last, first = Answer.BELOW, max(faster), min(slower)
    elif faster and slower:
        answer = Answer.SOME
    elif faster:
        answer = (
            Answer.MEASURE if all(load.is_single for load in (p.load for p in own)) else Answer.ON
        )
    else:
        answer = Answer.OFF if slower else Answer.MEASURE
    return Decision(workload, axis, answer, policy, own, others, last, first, is_main)


def _recommend(by_policy: dict[Policy, dict[Load, Point]]) -> Policy:
    """Least regret: see `RULES`. Among equals the one that is faster overall."""
    best: dict[Load, float] = defaultdict(lambda: 1.0)
    for points in by_policy.values():
        for load, point in points.items():
            best[load] = max(best[load], useful_gain(point))

    def rank(policy: Policy) -> tuple[int, float, float]:
        points = by_policy[policy]
        regrets = [best[load] / max(useful_gain(point), 1e-9) for load, point in points.items()]
        return -len(points), round(max(regrets), 3), sum(regrets) / len(regrets)

    return min(by_policy, key=rank)


def useful_gain(point: Point) -> float:
    """The speedup; 0 where a limit is broken, the output is wrong, or only plain decoding can answer what comes."""
    found = point.comparison
    is_left_behind = found.is_behind and not found.is_plain_behind
    if point.broken or is_left_behind or found.output.is_wrong:
        return 0.0
    return found.gain.value if found.gain is not None else 1.0
