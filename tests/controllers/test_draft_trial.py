"""Trials by those who can be paid for, as long as they cost to begin."""

from collections.abc import Sequence

import numpy as np
import pytest

from specresearch.controllers.draft_plan import DraftPlan, Prospects
from specresearch.controllers.draft_trial import DraftTrial
from specresearch.controllers.step_time import DraftCosts

SECONDS, ROOM = 10e-3, [9, 9, 9]
COSTS = DraftCosts(any=0.0, level=4e-3, row_level=0.0, node=0.0)


def trial_of(
    prefill: Sequence[float], allowance: float, limits: Sequence[int] = (5, 5, 5)
) -> tuple[DraftTrial, DraftPlan]:
    """Return a trial whose drafts are never accepted, and plain decoding.

    Args:
        prefill: Seconds of each row's lazy prefill.
    """
    each = np.array(prefill) / (np.array(ROOM) + 1)
    nothing = np.zeros(3, int)
    refused, nodes = np.zeros((3, 5)), np.ones(5)
    prospects = Prospects(refused, nodes, np.array(limits), nothing, each, COSTS, SECONDS)
    return DraftTrial.of(prospects, ROOM, allowance, 8, 5), prospects.plain


def test_those_draft_one_level_whose_prefill_can_be_paid() -> None:
    trial, _ = trial_of([30e-3, 10e-3, 20e-3], allowance=40e-3)
    assert trial.plan.depths.tolist() == [0, 1, 1]
    trial, _ = trial_of([30e-3, 10e-3, 20e-3], allowance=40e-3, limits=(5, 0, 5))
    assert trial.plan.depths.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("deepest", "depth"), [(5, 3), (2, 2), (1, 1)])
def test_it_is_as_deep_as_loses_least(deepest: int, depth: int) -> None:
    """Three levels that are mostly accepted, and two that are not; any draft at all costs 5 ms."""
    survival = np.tile([0.9, 0.85, 0.8, 0.1, 0.05], (3, 1))
    nothing = np.zeros(3, int)
    costs = DraftCosts(any=5e-3, level=10e-3, row_level=0.0, node=0.0)
    prospects = Prospects(survival, np.ones(5), nothing + 5, nothing, np.zeros(3), costs, SECONDS)
    trial = DraftTrial.of(prospects, ROOM, 1.0, 8, deepest)
    assert trial.plan.depths.tolist() == [depth] * 3


@pytest.mark.parametrize(("prefill", "num_steps"), [(0.0, 2), (12e-3, 3), (24e-3, 6), (1.0, 8)])
def test_it_lasts_until_it_has_lost_as_much_as_the_prefill(prefill: float, num_steps: int) -> None:
    """Each step loses four milliseconds."""
    trial, plain = trial_of([prefill, 9.0, 9.0], allowance=2.0)
    assert trial.num_steps == num_steps
    lost = trial.plan.seconds - trial.plan.tokens / plain.rate
    assert lost == pytest.approx(4e-3 + prefill / num_steps)


def test_it_begins_if_it_can_be_paid_and_makes_nobody_fall_behind() -> None:
    trial, plain = trial_of([0.0, 0.0, 0.0], allowance=1.0)
    assert trial.may_begin(plain, None, 8.1e-3)
    assert not trial.may_begin(plain, None, 7.9e-3)
    assert trial.may_begin(plain, lambda depths: 14.1e-3, 1.0)
    assert not trial.may_begin(plain, lambda depths: 13.9e-3, 1.0)
    nobody, plain = trial_of([9.0, 9.0, 9.0], allowance=1.0)
    assert not nobody.may_begin(plain, None, 1.0)


def test_plain_steps_are_tried_for_what_drafts_would_have_gained() -> None:
    nothing = np.zeros(3, int)
    plain, best = DraftPlan(nothing, 3.0, 10e-3), DraftPlan(nothing + 1, 6.0, 16e-3)
    trial = DraftTrial.of_plain(plain, best)
    assert trial.plan is plain
    assert trial.lost == pytest.approx(trial.num_steps * (10e-3 - 3 * 16e-3 / 6))
