"""Whether to turn it on: from speedups with intervals and the user's limits, by stated rules."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.estimates import simultaneous
from specresearch.reporting.limits import Limits
from specresearch.reporting.repeats import pooled_by_setting
from specresearch.reporting.workload import BATCH, Load, Policy, Workload

LEAST_GAIN = 1e-9  # keeps regrets finite


class Outcome(Enum):
    """Whether a setting is faster at one load."""

    FASTER, SLOWER, UNCLEAR = "faster", "slower", "cannot tell"


class Answer(Enum):
    """What to do with a setting; see `rules`."""

    ON = "Turn it on"
    BELOW = "Turn it on up to a load"
    SOME = "Turn it on at some loads"
    MEASURE = "Measure under load"
    OFF = "Turn it off"


@dataclass(frozen=True)
class Point:
    """One comparison, judged, with the limits by what becomes of them.

    Attributes:
        broken: Limits that it breaks and the baseline keeps.
        doubtful: Limits that it may break and the baseline keeps.
        kept: Limits that it keeps and the baseline breaks.
        hopeless: Limits that both break.
    """

    comparison: Comparison
    outcome: Outcome
    broken: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    hopeless: tuple[str, ...] = ()

    @property
    def load(self) -> Load:
        """Return the load of the comparison."""
        return self.comparison.load

    @property
    def verdict(self) -> str:
        """Return the outcome in words."""
        if self.comparison.output.is_wrong:
            return "wrong output"
        words = "breaks a limit" if self.broken else self.outcome.value
        return f"{words} (overloaded)" if self.comparison.any_overloaded else words


@dataclass(frozen=True)
class Decision:
    """What to do for one workload under one kind of load.

    Attributes:
        axis: The kind of load, as in `Load`.
        points: Of the recommended policy, by load.
        others: Of the other policies.
        last_faster: The last load at which it is faster, for `Answer.BELOW`.
        first_slower: The first load at which it is slower, for `Answer.BELOW`.
        is_main: False for batches of a workload that was also measured under arrivals or at a
            concurrency, which say more.
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
    def all_points(self) -> tuple[Point, ...]:
        """Return the points of all policies."""
        return *self.points, *self.others

    @property
    def loads(self) -> list[Load]:
        """Return the loads that were measured."""
        return sorted({point.load for point in self.all_points})

    @property
    def unit(self) -> str:
        """Return the unit of the loads."""
        return self.points[0].load.unit

    def with_outcome(self, outcome: Outcome) -> list[Point]:
        """Return the recommended policy's points of an outcome."""
        return [point for point in self.points if point.outcome is outcome]

    def at(self, load: Load) -> list[Point]:
        """Return the points of all policies at a load."""
        return [point for point in self.all_points if point.load == load]

    def best_fixed(self, load: Load) -> Point | None:
        """Return the fixed length of the recommended method that was fastest at a load."""
        points = [point for point in self.at(load) if self._is_fixed(point)]
        return max(points, key=useful_gain, default=None)

    @property
    def fixed_lengths(self) -> list[int]:
        """Return the fixed draft lengths of the recommended method that were measured."""
        policies = [point.comparison.policy for point in self.all_points if self._is_fixed(point)]
        return sorted({policy.length for policy in policies if policy.length})

    def _is_fixed(self, point: Point) -> bool:
        policy = point.comparison.policy
        return policy.is_fixed and policy.method == self.policy.method


def decide(comparisons: Sequence[Comparison], limits: Limits) -> list[Decision]:
    """Return a decision per workload and kind of load, in the order of the workloads' names."""
    scenes: dict[Workload, dict[str, list[Comparison]]] = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        scenes[comparison.workload][comparison.load.axis].append(comparison)
    decisions = []
    for workload in sorted(scenes, key=lambda workload: workload.label):
        by_axis = scenes[workload]
        for axis, group in by_axis.items():
            is_main = axis != BATCH or len(by_axis) == 1
            settings = pooled_by_setting(group)
            points = [judge(_together(one, len(settings)), limits) for one in settings]
            decisions.append(_decide(workload, axis, points, is_main=is_main))
    return decisions


def _together(comparison: Comparison, num: int) -> Comparison:
    """Return a comparison whose interval holds together with those of all others."""
    gain = comparison.gain and simultaneous(comparison.gain, num)
    return replace(comparison, gain=gain, num_compared=num)


def judge(comparison: Comparison, limits: Limits) -> Point:
    """Return the outcome, by the interval of the speedup and by the limits."""
    by_standing: dict[str, list[str]] = defaultdict(list)
    for name, limit in limits.given().items():
        own, baseline = comparison.speculative[name], comparison.baseline[name]
        if own is not None and baseline is not None:
            by_standing[_standing(own, baseline, limit)].append(name)
    if comparison.is_overloaded:  # the requests that got through say too little
        by_standing["kept"] = []
    if comparison.both_overloaded:
        by_standing.clear()
    gain = comparison.gain or Estimate(1.0)
    is_helped = bool(by_standing["kept"]) and gain.has_interval
    is_faster = gain.is_above(limits.worth) or is_helped
    if comparison.output.is_wrong or by_standing["broken"] or gain.is_below(limits.worth):
        outcome = Outcome.SLOWER
    elif is_faster and not by_standing["doubtful"]:
        outcome = Outcome.FASTER
    else:
        outcome = Outcome.UNCLEAR
    return Point(
        comparison,
        outcome,
        broken=tuple(by_standing["broken"]),
        doubtful=tuple(by_standing["doubtful"]),
        kept=tuple(by_standing["kept"]),
        hopeless=tuple(by_standing["hopeless"]),
    )


def _standing(own: Estimate, baseline: Estimate, limit: float) -> str:
    """Return which of a `Point`'s attributes a limit belongs to, or "" if it makes no difference."""
    if baseline.value > limit:
        if own.is_below(limit) and baseline.is_above(limit):
            return "kept"
        return "hopeless" if own.value > limit else ""
    if own.is_above(limit):
        return "broken"
    highest = own.value if own.high is None else own.high
    return "doubtful" if highest > limit else ""


def _decide(workload: Workload, axis: str, points: Sequence[Point], *, is_main: bool) -> Decision:
    by_policy: dict[Policy, dict[Load, Point]] = defaultdict(dict)
    for point in points:
        by_policy[point.comparison.policy][point.load] = point
    policy = _recommend(by_policy)
    decision = Decision(
        workload=workload,
        axis=axis,
        answer=Answer.OFF,
        policy=policy,
        points=tuple(by_policy[policy][load] for load in sorted(by_policy[policy])),
        others=tuple(
            p for other in by_policy if other != policy for p in by_policy[other].values()
        ),
        is_main=is_main,
    )
    faster = [point.load for point in decision.with_outcome(Outcome.FASTER)]
    slower = [point.load for point in decision.with_outcome(Outcome.SLOWER)]
    if any(point.comparison.output.is_wrong for point in decision.points):
        return decision
    if faster and slower and max(faster) < min(slower):
        bounds = {"last_faster": max(faster), "first_slower": min(slower)}
        return replace(decision, answer=Answer.BELOW, **bounds)
    if faster and slower:
        return replace(decision, answer=Answer.SOME)
    if faster:
        are_single = all(point.load.is_single for point in decision.points)
        return replace(decision, answer=Answer.MEASURE if are_single else Answer.ON)
    return replace(decision, answer=Answer.OFF if slower else Answer.MEASURE)


def _recommend(by_policy: Mapping[Policy, Mapping[Load, Point]]) -> Policy:
    """Return the policy of least regret, see `rules`; among equals the one that is faster."""
    best: dict[Load, float] = defaultdict(lambda: 1.0)
    for points in by_policy.values():
        for load, point in points.items():
            best[load] = max(best[load], useful_gain(point))

    def rank(policy: Policy) -> tuple[int, float, float]:
        regrets = []
        for load, point in by_policy[policy].items():
            regrets.append(best[load] / max(useful_gain(point), LEAST_GAIN))
        return -len(regrets), round(max(regrets), 3), sum(regrets) / len(regrets)

    return min(by_policy, key=rank)


def useful_gain(point: Point) -> float:
    """Return the speedup, or 0 if the setting cannot be used.

    That is where it breaks a limit, its output is wrong, or only the baseline keeps up.
    """
    comparison = point.comparison
    is_left_behind = comparison.is_overloaded and not comparison.is_baseline_overloaded
    if point.broken or is_left_behind or comparison.output.is_wrong:
        return 0.0
    return 1.0 if comparison.gain is None else comparison.gain.value
