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
class Prospects:
    """What is expected of drafts, by row and level, and the plans that can be made of it.

    Attributes:
        survival: Chance that the draft of a row is accepted down to each level.
        nodes: Nodes that a row makes in each level.
        limits: The deepest level of each row; 0 for rows that may not draft.
        given: The depth of rows whose number of drafts is given, which may be deeper than all
            levels; 0 for all others.
        prefill: Seconds of lazy prefill for each token that the row still makes.
        costs: What drafts add to a step.
        plain_seconds: Of a step without drafts.
    """

    survival: Float[np.ndarray, "R K"]
    nodes: Float[np.ndarray, " K"]
    limits: Int[np.ndarray, " R"]
    given: Int[np.ndarray, " R"]
    prefill: Float[np.ndarray, " R"]
    costs: DraftCosts
    plain_seconds: float

    def plan(self, depths: Int[np.ndarray, " R"]) -> DraftPlan:
        """Return the plan of these depths with its expected tokens and time."""
        gained, deepest = self.accepted(depths), int(depths.max(initial=0))
        seconds, costs = self.plain_seconds, self.costs
        if deepest:
            seconds += costs.any + costs.level * deepest
            seconds += float(self._own_seconds[self._known(depths)].sum())
            seconds += float(self.prefill @ ((1 + gained) * (depths > 0)))
        return DraftPlan(depths, len(depths) + float(gained.sum()), seconds)

    @cached_property
    def plain(self) -> DraftPlan:
        """The plan without drafts but those that are given."""
        return self.plan(self.given)

    def fastest(self) -> DraftPlan:
        """Return the plan with most expected tokens per second.

        The best plan is the one whose tokens less its time at a price are most, if the price of a
        second is what the plan itself makes of it (Dinkelbach 1967). Given the price, rows are
        independent but for the levels that they share.
        """
        plan = self.plain
        while True:
            better = self.at_price(plan.rate)
            if not better.rate > plan.rate:
                return plan
            plan = better

    def fastest_within(self, limit: TimeLimit, best: DraftPlan) -> DraftPlan:
        """Return the best plan that takes no longer than its limit, at ever higher prices of time.

        Args:
            best: The fastest plan.
        """
        plan = best
        for price in _PRICES:
            if plan.seconds <= limit(plan.depths):
                return plan
            plan = self.at_price(price * best.rate)
        return self.plain

    def at_price(self, price: float) -> DraftPlan:
        """Return the plan with most tokens less its time at a price in tokens per second."""
        prefill = price * self.prefill[:, None]
        values = self._gained * (1 - prefill) - price * self._own_seconds
        values[:, 1:] -= prefill
        values[self._levels > self.limits[:, None]] = -np.inf
        deepest = np.maximum(self._levels, self.given.max())
        shared = self.costs.level * deepest + self.costs.any * (deepest > 0)
        best = np.maximum.accumulate(values, axis=1).sum(axis=0) - price * shared
        chosen = values[:, : int(best.argmax()) + 1].argmax(axis=1)
        return self.plan(np.maximum(chosen, self.given))

    def newcomer(self, plan: DraftPlan) -> tuple[int, float]:
        """Return what pays for a request that comes while the others do as planned.

        Nothing is known of it, so it is taken to be like the others.

        Returns:
            How deep it drafts, no deeper than the others, and the seconds of lazy prefill that it
            may cost for each token that it makes.
        """
        gained = self._gained.mean(axis=0)[: int(plan.depths.max()) + 1]
        values = gained - plan.rate * self._own_seconds[: len(gained)]
        depth = int(values.argmax())
        return depth, float(values[depth] / (plan.rate * (1 + gained[depth])))

    def accepted(self, depths: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Return the expected accepted drafts of each row."""
        return self._gained[np.arange(len(depths)), self._known(depths)]

    def _known(self, depths: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
        """Return these depths, or the last level where they are deeper, as given ones may be."""
        return np.minimum(depths, len(self.nodes))

    @cached_property
    def _levels(self) -> Int[np.ndarray, " D"]:
        """The depths that there are, 0 included."""
        return np.arange(len(self.nodes) + 1)

    @cached_property
    def _gained(self) -> Float[np.ndarray, "R D"]:
        """Expected accepted drafts of each row, by depth."""
        gained = np.zeros((len(self.limits), len(self._levels)))
        self.survival.cumsum(axis=1, out=gained[:, 1:])
        return gained

    @cached_property
    def _own_seconds(self) -> Float[np.ndarray, " D"]:
        """The time that a row's draft adds for itself, by depth, without prefill."""
        seconds = self.costs.row_level * self._levels
        seconds[1:] += self.costs.node * self.nodes.cumsum()
        return seconds
