"""Plans of draft lengths against every other plan."""

from itertools import product

import numpy as np
import pytest

from specresearch.controllers.draft_plan import (
    DraftPlan,
    Prospects,
    at_price,
    best_of_one,
    fastest,
    plan_of,
)
from specresearch.controllers.step_time import DraftCosts

PLAIN = 10e-3


def random_prospects(rng: np.random.Generator, num_rows: int, num_levels: int) -> Prospects:
    survival = rng.uniform(0.1, 1.0, (num_rows, num_levels)).cumprod(axis=1)
    given = np.where(rng.random(num_rows) < 0.2, rng.integers(0, num_levels + 1, num_rows), 0)
    limits = np.where(given > 0, 0, rng.integers(0, num_levels + 1, num_rows))
    prefill = rng.choice([0.0, 1e-3], num_rows)
    return Prospects(survival, rng.uniform(0.5, 3.0, num_levels), limits, given, prefill)


def random_costs(rng: np.random.Generator) -> DraftCosts:
    return DraftCosts(*rng.uniform(0, [1e-3, 1e-3, 0.2e-3, 1e-3]))


def every_plan(prospects: Prospects, costs: DraftCosts) -> list[DraftPlan]:
    free = [range(limit + 1) if limit else [0] for limit in prospects.limits]
    plans = []
    for depths in product(*free):
        depths = np.where(prospects.given > 0, prospects.given, depths)
        plans.append(plan_of(prospects, costs, PLAIN, depths))
    return plans


@pytest.mark.parametrize("seed", range(30))
def test_no_other_plan_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prospects, costs = random_prospects(rng, 3, 4), random_costs(rng)
    best = max(plan.rate for plan in every_plan(prospects, costs))
    assert fastest(prospects, costs, PLAIN).rate == pytest.approx(best, rel=1e-6)


def test_drafts_that_do_not_pay_are_left_out() -> None:
    prospects = Prospects(
        np.array([[0.9, 0.81], [0.05, 0.0]]),
        np.ones(2),
        np.full(2, 2),
        np.zeros(2, int),
        np.zeros(2),
    )
    costs = DraftCosts(0.0, 1e-4, 0.0, 1e-3)
    assert fastest(prospects, costs, PLAIN).depths.tolist() == [2, 0]
    dear = DraftCosts(0.0, 20e-3, 0.0, 1e-3)
    assert fastest(prospects, dear, PLAIN).depths.tolist() == [0, 0]


def test_a_row_drafts_if_that_pays_back_its_prefill() -> None:
    def depths(prefill: float) -> list[int]:
        prospects = Prospects(
            np.full((2, 1), 0.5),
            np.ones(1),
            np.ones(2, int),
            np.zeros(2, int),
            np.array([0.0, prefill]),
        )
        return fastest(prospects, DraftCosts(0.0, 0.0, 0.0, 1e-3), PLAIN).depths.tolist()

    assert depths(1e-4) == [1, 1]
    assert depths(4e-3) == [1, 0]


def test_a_level_that_others_draft_anyway_costs_a_row_nothing() -> None:
    prospects = Prospects(
        np.array([[0.3], [0.9]]), np.ones(1), np.array([1, 0]), np.array([0, 1]), np.zeros(2)
    )
    costs = DraftCosts(5e-3, 5e-3, 0.0, 1e-3)
    assert fastest(prospects, costs, PLAIN).depths.tolist() == [1, 1]
    alone = Prospects(
        prospects.survival, np.ones(1), np.array([1, 0]), np.zeros(2, int), np.zeros(2)
    )
    assert fastest(alone, costs, PLAIN).depths.tolist() == [0, 0]


@pytest.mark.parametrize(("others", "level", "depth"), [(2, 0.0, 4), (2, 9e-3, 2), (0, 9e-3, 0)])
def test_a_row_pays_for_levels_that_nobody_else_drafts(
    others: int, level: float, depth: int
) -> None:
    """The others may be near the end of their outputs, and so draft less than pays."""
    survival = np.array([[0.9, 0.8, 0.7, 0.6]] * 2)
    limits, given = np.array([4, 0]), np.array([0, others])
    prospects = Prospects(survival, np.ones(4), limits, given, np.zeros(2))
    costs = DraftCosts(any=5e-3, level=level, row_level=0.0, node=1e-3)
    plan = at_price(prospects, costs, PLAIN, price=100.0)
    assert plan.depths.tolist() == [depth, others]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("deepest", [0, 2])
def test_one_row_drafts_as_it_would_beside_others(seed: int, deepest: int) -> None:
    rng = np.random.default_rng(seed)
    survival, nodes = rng.uniform(0.1, 1.0, (1, 4)).cumprod(axis=1), rng.uniform(0.5, 3.0, 4)
    costs, nothing = random_costs(rng), np.zeros(1, int)
    lone = Prospects(survival, nodes, nothing + 4, nothing, np.zeros(1))
    others = Prospects(
        survival.repeat(2, axis=0), nodes, np.array([4, 0]), np.array([0, deepest]), np.zeros(2)
    )
    best = best_of_one(lone, costs, price=150.0, deepest=deepest)
    assert at_price(others, costs, PLAIN, price=150.0).depths.tolist() == [best.depth, deepest]
    assert best.gained == pytest.approx(survival[0, : best.depth].sum())
    assert (best.value > 0) == (best.depth > 0)


def test_a_given_depth_may_exceed_all_levels() -> None:
    prospects = Prospects(
        np.array([[0.9, 0.8]] * 2), np.ones(2), np.array([2, 0]), np.array([0, 8]), np.zeros(2)
    )
    assert fastest(prospects, DraftCosts(0.0, 0.0, 0.0, 1e-3), PLAIN).depths.tolist() == [2, 8]
