"""Which drafts are worth their time: those that yield more tokens than the same time elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.controllers.step_time import DraftCosts

TimeLimit = Callable[[Int[np.ndarray, " R"]], float]

_MIN_SECONDS = 1e-9  # a fit may know nothing of plain steps
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
        given: The depth of rows whose number of drafts is given, 0 for all others.
        prefill: Seconds of lazy prefill for each token that the row still makes.
    """

    survival: Float[np.ndarray, "R K"]
    nodes: Float[np.ndarray, " K"]
    limits: Int[np.ndarray, " R"]
    given: Int[np.ndarray, " R"]
    prefill: Float[np.ndarray, " R"]

    def accepted(self, depths: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Return the expected accepted drafts of each row."""
        return (self.survival * self.is_drawn(depths)).sum(axis=1)

    def is_drawn(self, depths: Int[np.ndarray, " R"]) -> Bool[np.ndarray, "R K"]:
        """Return the levels that are drafted at these depths."""
        return np.arange(self.survival.shape[1]) < depths[:, None]


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
    levels = np.arange(1, prospects.survival.shape[1] + 1)
    value = np.where(levels > prospects.limits[:, None], -np.inf, _values(prospects, costs, price))
    deepest_given = int(prospects.given.max())
    shared = costs.level * (levels - deepest_given).clip(min=0) + costs.any * (deepest_given == 0)
    best = np.maximum.accumulate(value, axis=1)
    totals = best.clip(min=0).sum(axis=0) - price * shared
    depth = int(totals.argmax()) + 1
    depths = prospects.given
    if totals[depth - 1] > 0:
        chosen = value[:, :depth].argmax(axis=1) + 1
        depths = np.where(best[:, depth - 1] > 0, chosen, depths)
    return plan_of(prospects, costs, plain, depths)


def depth_of_one(prospects: Prospects, costs: DraftCosts, price: float, deepest: int) -> int:
    """Return how deep one row drafts beside others that pay for the levels down to `deepest`."""
    values = _values(prospects, costs, price)[0]
    values -= price * costs.level * (np.arange(1, len(values) + 1) - deepest).clip(min=0)
    return int(values.argmax()) + 1 if values.max() > 0 else 0


def _values(prospects: Prospects, costs: DraftCosts, price: float) -> Float[np.ndarray, "R K"]:
    """Return the tokens of each row's draft less its own time at a price, by depth."""
    prefill = price * prospects.prefill[:, None]
    gain = prospects.survival * (1 - prefill)
    gain -= price * (costs.node * prospects.nodes + costs.row_level)
    return gain.cumsum(axis=1) - prefill


def plan_of(
    prospects: Prospects, costs: DraftCosts, plain: float, depths: Int[np.ndarray, " R"]
) -> DraftPlan:
    """Return the plan of these depths with its expected tokens and time."""
    gained, drawn = prospects.accepted(depths), prospects.is_drawn(depths)
    is_drafting = depths > 0
    seconds = (
        max(plain, _MIN_SECONDS)
        + costs.any * bool(is_drafting.any())
        + costs.level * int(depths.max(initial=0))
    )
    seconds += costs.row_level * int(depths.sum())
    seconds += costs.node * float((prospects.nodes * drawn).sum())
    seconds += float((prospects.prefill * (1 + gained) * is_drafting).sum())
    return DraftPlan(depths, len(depths) + float(gained.sum()), seconds)
