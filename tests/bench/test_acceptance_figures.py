"""Acceptance lengths have intervals that the lengths of drafts do not widen."""

import numpy as np
import pytest

from specresearch.bench.acceptance_figures import acceptance_figures
from specresearch.metrics import Counts
from specresearch.statistics import LEAST_UNITS


def counts(num_drafts: int, length: int, num_accepted: int) -> Counts:
    """Return a prompt whose drafts are all of one length."""
    num_draft_tokens = num_drafts * length
    return Counts(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted,
        num_generated_tokens=num_accepted + num_drafts,
        num_target_forwards=num_drafts,
    )


def test_drafts_of_other_lengths_do_not_blow_up_the_interval_of_the_acceptance_length() -> None:
    """Nearly all is accepted, so the length follows the drafts', and has no limit between them."""
    prompts = [counts(12, length, 12 * length) for length in (7, 8, 9, 10) * 2]
    prompts[0] = counts(12, 7, 12 * 7 - 3)
    values, intervals = acceptance_figures(prompts)
    for name in ("mean_acceptance_length", "tokens_per_target_forward"):
        low, high = intervals[name]
        assert low < values[name] < high
        assert low > 8
        assert high < 11


def test_drafts_of_other_lengths_are_uncertain_even_if_all_are_accepted() -> None:
    prompts = [counts(12, length, 12 * length) for length in (7, 8, 9, 10) * 2]
    low, high = acceptance_figures(prompts)[1]["mean_acceptance_length"]
    assert low < 9.5 < high < 11


def test_an_acceptance_length_is_bounded_by_the_longest_drafts() -> None:
    prompts = [counts(12, 4, int(num)) for num in np.linspace(44, 48, LEAST_UNITS)]
    low, high = acceptance_figures(prompts)[1]["mean_acceptance_length"]
    assert low < high < 5


@pytest.mark.parametrize("num_accepted", [0, 48])
def test_prompts_that_are_all_alike_have_an_interval_of_no_width(num_accepted: int) -> None:
    prompts = [counts(12, 4, num_accepted)] * LEAST_UNITS
    value = 1 + num_accepted / 12
    assert acceptance_figures(prompts)[1]["mean_acceptance_length"] == (value, value)
