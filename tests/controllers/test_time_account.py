"""The account of what trials and decisions cost."""

from specresearch.controllers.time_account import TimeAccount


def test_no_more_than_the_share_is_spent() -> None:
    account, lost, num_trials = TimeAccount(0.01, early=100.0), 0.0, []
    for step in range(1000):
        is_trial = account.allowance >= 0.5
        account.observe(1.0 + 0.5 * is_trial, 0.5 * is_trial)
        lost += 0.5 * is_trial
        if is_trial:
            num_trials.append(step)
    assert lost <= 0.01 * (1000 + lost + 100 * 1.02)
    assert len(num_trials) >= 18
    assert num_trials[:2] == [1, 2]  # the share of the first hundred steps is spent at once


def test_trials_that_gain_may_go_on() -> None:
    account = TimeAccount(0.01, early=0.0)
    account.observe(1.0)
    before = account.allowance
    account.observe(1.0, -0.2)
    assert account.allowance > before + 0.2


def test_nothing_is_tried_before_anything_is_known() -> None:
    assert TimeAccount(0.5, early=100.0).allowance == 0


def test_the_share_that_was_spent() -> None:
    account = TimeAccount(0.01, early=0.0)
    assert account.spent_share == 0
    account.observe(3.0, 0.5)
    account.observe(1.0, 0.5)
    assert account.spent_share == 0.25
