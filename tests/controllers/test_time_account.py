"""The account of what trials and decisions cost."""

from specresearch.controllers.time_account import TimeAccount


def test_no_more_than_the_share_is_spent() -> None:
    account, lost, num_trials = TimeAccount(0.01), 0.0, []
    for step in range(1000):
        is_trial = account.allowance >= 0.5
        account.observe(1.0 + 0.5 * is_trial, 0.5 * is_trial)
        lost += 0.5 * is_trial
        if is_trial:
            num_trials.append(step)
    assert lost <= 0.01 * (1000 + lost + 500 * 1.02)
    assert len(num_trials) >= 26
    assert num_trials[:10] == [*range(1, 11)]  # the share of 500 steps is spent at once


def test_trials_that_gain_may_go_on() -> None:
    account = TimeAccount(0.01)
    account.observe(1.0)
    before = account.allowance
    account.observe(1.0, -0.2)
    assert account.allowance > before + 0.2


def test_nothing_is_tried_before_anything_is_known() -> None:
    assert TimeAccount(0.5).allowance == 0
