"""Whether to turn it on: from speedups with intervals and the user's limits, by stated rules."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparison import Comparison, Outcome, Standing
from specresearch.reporting.estimates import simultaneous
from specresearch.reporting.repeats import pooled_by_setting
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.workload import BATCH, Load, Setting, WorkloadKey

LEAST_GAIN = 1e-9  # keeps regrets finite


class Answer(Enum):
    """What to do with a setting; the page states the rules."""

    ON = "Turn it on"
    BELOW = "Turn it on up to a load"
    SOME = "Turn it on at some loads"
    MEASURE = "Measure more"
    OFF = "Turn it off"
    SPEED = "Speed only, no recommendation"


@dataclass(frozen=True)
class Decision:
    """What to do for one workload under one kind of load.

    Attributes:
        points: Judged comparisons of the recommended setting, by load.
        others: Those of the other settings.
        last_faster: The last load at which it is faster, for `Answer.BELOW`.
        first_slower: The first load at which it is slower, for `Answer.BELOW`.
        is_main: False for batches of a workload that was also measured under arrivals or at a
            concurrency, which say more.
    """

    answer: Answer
    points: tuple[Comparison, ...]
    others: tuple[Comparison, ...]
    last_faster: Load | None = None
    first_slower: Load | None = None
    is_main: bool = True

    @property
    def workload(self) -> WorkloadKey:
        """Return what was decoded."""
        return self.points[0].workload

    @property
    def setting(self) -> Setting:
        """Return the recommended setting."""
        return self.points[0].setting

    @property
    def axis(self) -> str:
        """Return the kind of load, as in `Load`."""
        return self.points[0].load.axis

    @property
    def unit(self) -> str:
        """Return the unit of the loads."""
        return self.points[0].load.unit

    @property
    def all_points(self) -> tuple[Comparison, ...]:
        """Return the comparisons of all settings."""
        return *self.points, *self.others

    @property
    def loads(self) -> list[Load]:
        """Return the loads that were measured."""
        return sorted({point.load for point in self.all_points})

    @property
    def fixed_points(self) -> list[Comparison]:
        """Return the comparisons of the recommended method's fixed draft lengths."""
        points = []
        for point in self.all_points:
            if point.setting.method == self.setting.method and point.setting.is_chain_length:
                points.append(point)
        return points

    @property
    def best_by_method(self) -> dict[Setting, list[Comparison]]:
        """Return the points of the best setting of every method, the recommended one first."""
        by_method: dict[str, dict[Setting, dict[Load, Comparison]]] = {}
        for point in self.all_points:
            by_setting = by_method.setdefault(point.setting.method, defaultdict(dict))
            by_setting[point.setting][point.load] = point
        best = {}
        for by_setting in by_method.values():
            setting = recommend(by_setting)
            if self.setting in by_setting:
                setting = self.setting
            points = by_setting[setting]
            best[setting] = [points[load] for load in sorted(points)]
        return best

    def with_outcome(self, outcome: Outcome) -> list[Comparison]:
        """Return the recommended setting's comparisons of an outcome."""
        return [point for point in self.points if point.outcome is outcome]

    def best_at(self, load: Load) -> Comparison:
        """Return the best comparison of any setting at a load."""
        return max((point for point in self.all_points if point.load == load), key=useful_gain)

    def best_fixed(self, load: Load) -> Comparison | None:
        """Return the fixed length of the recommended method that was fastest at a load."""
        points = [point for point in self.fixed_points if point.load == load]
        return max(points, key=useful_gain, default=None)


def decide(comparisons: Sequence[Comparison], requirements: Requirements) -> list[Decision]:
    """Return a decision per workload and kind of load, in the order of the workloads' names."""
    groups: dict[WorkloadKey, dict[str, list[Comparison]]] = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        groups[comparison.workload][comparison.load.axis].append(comparison)
    decisions = []
    for workload in sorted(groups, key=lambda workload: workload.label):
        by_axis = groups[workload]
        for axis, group in by_axis.items():
            pooled = pooled_by_setting(group)
            points = []
            for comparison in pooled:
                gain = comparison.gain and simultaneous(comparison.gain, len(pooled))
                together = replace(comparison, gain=gain, num_compared=len(pooled))
                points.append(judge(together, requirements))
            is_main = axis != BATCH or len(by_axis) == 1
            decisions.append(replace(_decide(points), is_main=is_main))
    return decisions


def judge(comparison: Comparison, requirements: Requirements) -> Comparison:
    """Return a comparison with its outcome, by the interval of the speedup and by the limits."""
    standings = {}
    for name, limit in requirements.limits.items():
        standing = _standing(comparison, name, limit)
        if standing is not None:
            standings[name] = standing
    gain = comparison.gain or Estimate(1.0)  # without an interval it decides nothing
    speed = Outcome.of(gain, requirements.worth)
    is_helped = Standing.KEPT in standings.values() and gain.has_interval
    is_faster = is_helped or speed is Outcome.FASTER
    is_hurt = Standing.BROKEN in standings.values() or comparison.output.is_wrong
    outcome = Outcome.UNCLEAR
    if is_hurt or speed is Outcome.SLOWER:
        outcome = Outcome.SLOWER
    elif is_faster and Standing.DOUBTFUL not in standings.values():
        outcome = Outcome.FASTER
    return replace(comparison, outcome=outcome, standings=standings)


def _standing(comparison: Comparison, name: str, limit: float) -> Standing | None:
    """Return what becomes of a limit; None if it is unknown or makes no difference."""
    own, baseline = comparison.speculative[name], comparison.baseline[name]
    if own is None or baseline is None or comparison.both_overloaded:
        return None
    if baseline.value > limit:
        if own.is_below(limit) and baseline.is_above(limit):
            # The requests that get through an overload say too little.
            return None if comparison.is_overloaded else Standing.KEPT
        is_broken_by_both = own.is_above(limit) and baseline.is_above(limit)
        return Standing.HOPELESS if is_broken_by_both else None
    if own.is_above(limit):
        return Standing.BROKEN
    highest = own.value if own.high is None else own.high
    return Standing.DOUBTFUL if highest > limit else None


def _decide(points: Sequence[Comparison]) -> Decision:
    by_setting: dict[Setting, dict[Load, Comparison]] = defaultdict(dict)
    for point in points:
        by_setting[point.setting][point.load] = point
    setting = recommend(by_setting)
    recommended = by_setting.pop(setting)
    others = [point for by_load in by_setting.values() for point in by_load.values()]
    decision = Decision(
        answer=Answer.OFF,
        points=tuple(recommended[load] for load in sorted(recommended)),
        others=tuple(others),
    )
    if decision.workload.caveats:
        return replace(decision, answer=Answer.SPEED)
    faster = [point.load for point in decision.with_outcome(Outcome.FASTER)]
    slower = [point.load for point in decision.with_outcome(Outcome.SLOWER)]
    if any(point.output.is_wrong for point in decision.points):
        return decision
    if faster and slower:
        if max(faster) > min(slower):
            return replace(decision, answer=Answer.SOME)
        bounds = {"last_faster": max(faster), "first_slower": min(slower)}
        return replace(decision, answer=Answer.BELOW, **bounds)
    measured = [point for point in decision.points if point.gain and point.gain.has_interval]
    if faster and not all(point.load.is_single for point in measured):
        return replace(decision, answer=Answer.ON)
    return replace(decision, answer=Answer.OFF if slower else Answer.MEASURE)


def recommend(by_setting: Mapping[Setting, Mapping[Load, Comparison]]) -> Setting:
    """Return the setting of least regret among those measured at most loads.

    Among equals, the one with the smaller mean regret is taken.
    """
    best: dict[Load, float] = defaultdict(lambda: 1.0)
    for points in by_setting.values():
        for load, point in points.items():
            best[load] = max(best[load], useful_gain(point))

    def rank(setting: Setting) -> tuple[int, float, float]:
        regrets = []
        for load, point in by_setting[setting].items():
            regrets.append(best[load] / max(useful_gain(point), LEAST_GAIN))
        # Rounded, so that noise in the third decimal does not outweigh the mean.
        return -len(regrets), round(max(regrets), 3), sum(regrets) / len(regrets)

    return min(by_setting, key=rank)


def useful_gain(point: Comparison) -> float:
    """Return the speedup, or 0 if the setting cannot be used.

    That is where it breaks a limit, its output is wrong, or only the baseline keeps up.
    """
    is_left_behind = point.is_overloaded and not point.is_baseline_overloaded
    is_limit_broken = Standing.BROKEN in point.standings.values()
    if is_limit_broken or is_left_behind or point.output.is_wrong:
        return 0.0
    return 1.0 if point.gain is None else point.gain.value
