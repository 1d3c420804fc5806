"""Which drafts are worth their time: those that yield more tokens than the same time elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.step_time import DraftCosts

TimeLimit = Callable[[Int[np.ndarray, " R"]], float]

_PRICES = [
    1.25**i for i in range(1, 13)
]  # of time, relative to the best plan, at which a plan within a limit is looked for


@dataclass(frozen=True)
class Prospects:
    """What is expected of drafts, by row and level.

    Attributes:
        survival: Chance that the draft of a row is accepted down to each level.
        nodes: Nodes that a row makes in each level.
        limits: The deepest level of each row; 0 for rows that may not draft.
        given: The depth of rows whose number of drafts is given, which may be deeper than all
            levels; 0 for all others.
        prefill: Seconds of lazy prefill for each token that the row still makes.
    """

    survival: Float[np.ndarray, "R K"]
    nodes: Float[np.ndarray, " K"]
    limits: Int[np.ndarray, " R"]
    given: Int[np.ndarray, " R"]
    prefill: Float[np.ndarray, " R"]

    @cached_property
    def levels(self) -> Int[np.ndarray, " D"]:
        """The depths that there are, 0 included."""
        return np.arange(len(self.nodes) + 1)

    @cached_property
    def gained(self) -> Float[np.ndarray, "R D"]:
        """Expected accepted drafts of each row, by depth."""
        gained = np.zeros((len(self.limits), len(self.levels)))
        self.survival.cumsum(axis=1, out=gained[:, 1:])
        return gained

    def accepted(self, depths: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Return the expected accepted drafts of each row."""
        return self.gained[np.arange(len(depths)), depths.clip(max=len(self.nodes))]

    def own_seconds(self, costs: DraftCosts) -> Float[np.ndarray, " D"]:
        """Return the time that a row's draft adds for itself, by depth, without prefill."""
        seconds = costs.row_level * self.levels
        seconds[1:] += costs.node * self.nodes.cumsum()
        return seconds


@dataclass(frozen=True)
class DraftPlan:
    """How deep each row drafts.

    Attributes:
        tokens: Expected tokens of the step.
        seconds: Expected time of the step, with its share of lazy prefill.
    """

    depths: Int[np.ndarray, " R"]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class LoneDraft:
    """What one row drafts beside the others.

    Attributes:
        depth: The levels of its draft.
        gained: Expected accepted drafts.
        value: These less the price of their time, in tokens.
    """

    depth: int
    gained: float
    value: float


def fastest(prospects: Prospects, costs: DraftCosts, plain: float) -> DraftPlan:
    """Return the plan with most expected tokens per second.

    The best plan is the one whose tokens less its time at a price are most, if the price of a
    second is what the plan itself makes of it (Dinkelbach 1967). Given the price, rows are
    independent but for the levels that they share.

    Args:
        plain: Seconds of the step without drafts.
    """
    plan = plan_of(prospects, costs, plain, prospects.given)
    while True:
        better = at_price(prospects, costs, plain, plan.rate)
        if not better.rate > plan.rate:
            return plan
        plan = better


def fastest_within(
    limit: TimeLimit, best: DraftPlan, prospects: Prospects, costs: DraftCosts, plain: float
) -> DraftPlan:
    """Return the best plan that takes no longer than its limit, at ever higher prices of time."""
    plan = best
    for price in _PRICES:
        if plan.seconds <= limit(plan.depths):
            return plan
        plan = at_price(prospects, costs, plain, price * best.rate)
    return plan_of(prospects, costs, plain, prospects.given)


def at_price(prospects: Prospects, costs: DraftCosts, plain: float, price: float) -> DraftPlan:
    """Return the plan with most tokens less its time at a price in tokens per second."""
    prefill, deepest_given = price * prospects.prefill[:, None], int(prospects.given.max())
    values = prospects.gained * (1 - prefill) - price * prospects.own_seconds(costs)
    values[:, 1:] -= prefill
    values[prospects.levels > prospects.limits[:, None]] = -np.inf
    best = np.maximum.accumulate(values, axis=1).sum(axis=0)
    best -= price * _shared_seconds(prospects, costs, deepest_given)
    depth = int(best.argmax())
    chosen = values[:, : depth + 1].argmax(axis=1)
    return plan_of(prospects, costs, plain, np.maximum(chosen, prospects.given))


def best_of_one(prospects: Prospects, costs: DraftCosts, price: float, deepest: int) -> LoneDraft:
    """Return the best draft of one row beside others that pay for the levels down to `deepest`."""
    seconds = prospects.own_seconds(costs) + _shared_seconds(prospects, costs, deepest)
    values = prospects.gained[0] - price * seconds
    depth = int(values.argmax())
    return LoneDraft(depth, float(prospects.gained[0, depth]), float(values[depth]))


def _shared_seconds(
    prospects: Prospects, costs: DraftCosts, deepest: int
) -> Float[np.ndarray, " D"]:
    """Return the time that rows share, by depth, beyond that of the levels down to `deepest`."""
    seconds = costs.level * (prospects.levels - deepest).clip(min=0)
    if not deepest:
        seconds[1:] += costs.any
    return seconds


def plan_of(
    prospects: Prospects, costs: DraftCosts, plain: float, depths: Int[np.ndarray, " R"]
) -> DraftPlan:
    """Return the plan of these depths with its expected tokens and time."""
    gained, deepest, seconds = prospects.accepted(depths), int(depths.max(initial=0)), plain
    if deepest:
        seconds += costs.any + costs.level * deepest
        seconds += float(prospects.own_seconds(costs).take(depths, mode="clip").sum())
        seconds += float(prospects.prefill @ ((1 + gained) * (depths > 0)))
    return DraftPlan(depths, len(depths) + float(gained.sum()), seconds)
