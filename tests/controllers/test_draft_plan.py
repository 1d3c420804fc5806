"""Plans of draft lengths against every other plan."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from specresearch.controllers.draft_plan import DraftPlan, Prospects
from specresearch.controllers.step_time import DraftCosts

PLAIN = 10e-3


def random_prospects(rng: np.random.Generator, num_rows: int, num_levels: int) -> Prospects:
    survival = rng.uniform(0.1, 1.0, (num_rows, num_levels)).cumprod(axis=1)
    given = np.where(rng.random(num_rows) < 0.2, rng.integers(0, num_levels + 1, num_rows), 0)
    limits = np.where(given > 0, 0, rng.integers(0, num_levels + 1, num_rows))
    prefill, nodes = rng.choice([0.0, 1e-3], num_rows), rng.uniform(0.5, 3.0, num_levels)
    return Prospects(survival, nodes, limits, given, prefill, random_costs(rng), PLAIN)


def random_costs(rng: np.random.Generator) -> DraftCosts:
    return DraftCosts(*rng.uniform(0, [1e-3, 1e-3, 0.2e-3, 1e-3]))


def every_plan(prospects: Prospects) -> list[DraftPlan]:
    free = [range(limit + 1) if limit else [0] for limit in prospects.limits]
    plans = []
    for depths in product(*free):
        depths = np.where(prospects.given > 0, prospects.given, depths)
        plans.append(prospects.plan(depths))
    return plans


@pytest.mark.parametrize("seed", range(30))
def test_no_other_plan_is_faster(seed: int) -> None:
    prospects = random_prospects(np.random.default_rng(seed), 3, 4)
    best = max(plan.rate for plan in every_plan(prospects))
    assert prospects.fastest().rate == pytest.approx(best, rel=1e-6)


def test_drafts_that_do_not_pay_are_left_out() -> None:
    prospects = Prospects(
        np.array([[0.9, 0.81], [0.05, 0.0]]),
        np.ones(2),
        np.full(2, 2),
        np.zeros(2, int),
        np.zeros(2),
        DraftCosts(0.0, 1e-4, 0.0, 1e-3),
        PLAIN,
    )
    assert prospects.fastest().depths.tolist() == [2, 0]
    dear = replace(prospects, costs=DraftCosts(0.0, 20e-3, 0.0, 1e-3))
    assert dear.fastest().depths.tolist() == [0, 0]


def test_a_row_drafts_if_that_pays_back_its_prefill() -> None:
    def depths(prefill: float) -> list[int]:
        prospects = Prospects(
            np.full((2, 1), 0.5),
            np.ones(1),
            np.ones(2, int),
            np.zeros(2, int),
            np.array([0.0, prefill]),
            DraftCosts(0.0, 0.0, 0.0, 1e-3),
            PLAIN,
        )
        return prospects.fastest().depths.tolist()

    assert depths(1e-4) == [1, 1]
    assert depths(4e-3) == [1, 0]


def test_a_level_that_others_draft_anyway_costs_a_row_nothing() -> None:
    survival, costs = np.array([[0.3], [0.9]]), DraftCosts(5e-3, 5e-3, 0.0, 1e-3)
    limits, given = np.array([1, 0]), np.array([0, 1])
    prospects = Prospects(survival, np.ones(1), limits, given, np.zeros(2), costs, PLAIN)
    assert prospects.fastest().depths.tolist() == [1, 1]
    alone = replace(prospects, given=np.zeros(2, int))
    assert alone.fastest().depths.tolist() == [0, 0]


@pytest.mark.parametrize(("others", "level", "depth"), [(2, 0.0, 4), (2, 9e-3, 2), (0, 9e-3, 0)])
def test_a_row_pays_for_levels_that_nobody_else_drafts(
    others: int, level: float, depth: int
) -> None:
    """The others may be near the end of their outputs, and so draft less than pays."""
    survival = np.array([[0.9, 0.8, 0.7, 0.6]] * 2)
    limits, given = np.array([4, 0]), np.array([0, others])
    costs = DraftCosts(any=5e-3, level=level, row_level=0.0, node=1e-3)
    prospects = Prospects(survival, np.ones(4), limits, given, np.zeros(2), costs, PLAIN)
    assert prospects.at_price(100.0).depths.tolist() == [depth, others]


@pytest.mark.parametrize("seed", range(20))
def test_a_newcomer_drafts_as_the_others_do_if_its_prefill_costs_less_than_that_gains(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    survival = rng.uniform(0.1, 1.0, (1, 4)).cumprod(axis=1).repeat(3, axis=0)
    nothing, nodes = np.zeros(3, int), rng.uniform(0.5, 3.0, 4)
    prospects = Prospects(
        survival, nodes, nothing + 4, nothing, np.zeros(3), random_costs(rng), PLAIN
    )
    best = prospects.fastest()
    depth, most = prospects.newcomer(best)
    assert depth == best.depths[0]
    assert (most > 0) == (depth > 0)
    for prefill in (0.9 * most, 1.1 * most):
        dear = replace(prospects, prefill=np.array([0, 0, prefill]))
        drafts = dear.at_price(best.rate).depths[2] > 0
        assert drafts == (prefill < most)


def test_a_given_depth_may_exceed_all_levels() -> None:
    survival, costs = np.array([[0.9, 0.8]] * 2), DraftCosts(0.0, 0.0, 0.0, 1e-3)
    limits, given = np.array([2, 0]), np.array([0, 8])
    prospects = Prospects(survival, np.ones(2), limits, given, np.zeros(2), costs, PLAIN)
    assert prospects.fastest().depths.tolist() == [2, 8]
