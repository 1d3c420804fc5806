"""Lengths that maximise throughput, against every other choice."""

import itertools

import numpy as np
import pytest
from jaxtyping import Float, Int

from specresearch.controllers.allocation import Rows, allocate


class Linear:
    """Seconds of a step: base + each * longest + token * drafts."""

    def __init__(self, base: float, each: float, token: float) -> None:
        self.base, self.each, self.token = base, each, token

    def __call__(
        self, longest: Int[np.ndarray, " W"], num_drafts: Float[np.ndarray, "W M"]
    ) -> Float[np.ndarray, "W M"]:
        return self.base + self.each * longest[:, None] + self.token * num_drafts

    def rate(
        self,
        acceptance: np.ndarray,
        lengths: tuple[int, ...],
        supply: np.ndarray | float = 1.0,
        some: float = 1.0,
    ) -> float:
        """some: the chance that any row drafts."""
        gained = [
            float((a ** np.arange(1, k + 1)).sum())
            for a, k in zip(acceptance, lengths, strict=True)
        ]
        tokens = len(lengths) + float(np.sum(supply * np.array(gained)))
        num_drafts = float(np.sum(supply * np.array(lengths)))
        return tokens / (self.base + some * self.each * max(lengths) + self.token * num_drafts)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_lengths_are_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acceptance, limits, supply = (
        rng.uniform(0.05, 0.99, 3),
        rng.integers(0, 5, 3),
        rng.uniform(0.05, 1.0, 3),
    )
    given = np.where(rng.random(3) < 0.2, rng.integers(0, 5, 3), 0)
    limits[given > 0] = 0
    seconds = Linear(1.0, *10 ** rng.uniform(-3, 0.3, 2))
    choices = itertools.product(
        *[
            [g] if g else range(limit + 1)
            for g, limit in zip(given.tolist(), limits.tolist(), strict=True)
        ]
    )
    chosen = tuple(allocate(Rows(acceptance, supply, limits, given), seconds).tolist())
    some = 1 - float((1 - supply[limits + given > 0]).prod())
    best = max(seconds.rate(acceptance, lengths, supply, some) for lengths in choices)
    assert seconds.rate(acceptance, chosen, supply, some) == pytest.approx(best, rel=1e-9)
    assert all(g <= k <= max(g, limit) for g, k, limit in zip(given, chosen, limits, strict=True))


def test_one_length_for_all_is_slower_where_requests_differ() -> None:
    acceptance, none = np.array([0.95, 0.9, 0.2, 0.1]), np.zeros(4, dtype=int)
    seconds = Linear(1.0, 0.02, 0.1)
    chosen = tuple(allocate(Rows(acceptance, np.ones(4), np.full(4, 8), none), seconds).tolist())
    common = max(seconds.rate(acceptance, (k,) * 4) for k in range(9))
    assert seconds.rate(acceptance, chosen) > 1.1 * common
    assert chosen[0] >= chosen[1] > chosen[2] >= chosen[3]


def test_nothing_is_drafted_without_room_or_gain() -> None:
    acceptance, ones, none = np.array([0.9, 0.9]), np.ones(2), np.zeros(2, dtype=int)
    assert allocate(Rows(acceptance, ones, none, none), Linear(1.0, 0.0, 0.0)).tolist() == [0, 0]
    assert allocate(
        Rows(acceptance, ones, np.array([5, 5]), none), Linear(1.0, 2.0, 0.0)
    ).tolist() == [0, 0]


def test_a_row_without_a_choice_makes_room_for_the_others() -> None:
    """The longest row determines the time, so other rows may draft as far for free."""
    acceptance, ones, seconds = np.array([0.6, 0.6]), np.ones(2), Linear(1.0, 0.5, 0.0)
    free = allocate(Rows(acceptance, ones, np.array([6, 6]), np.zeros(2, dtype=int)), seconds)
    led = allocate(Rows(acceptance, ones, np.array([6, 0]), np.array([0, 6])), seconds)
    assert free.tolist() == [1, 1]
    assert led.tolist() == [6, 6]


@pytest.mark.parametrize("seed", range(40))
def test_rows_draft_only_if_that_is_worth_the_prefill(seed: int) -> None:
    """Within 2% of the best choice if all drafting rows prefill, and no worse than ignoring it."""
    rng = np.random.default_rng(seed)
    rows = Rows(rng.uniform(0.3, 0.9, 3), np.ones(3), np.full(3, 4), np.zeros(3, dtype=int))
    seconds, reading = Linear(1.0, *10 ** rng.uniform(-3, -0.7, 2)), rng.uniform(0.0, 0.3, 3)

    def rate(lengths: tuple[int, ...]) -> float:
        chosen = np.array(lengths)
        tokens = 1 + rows.accepted(chosen)
        time = float(seconds(chosen.max(keepdims=True), np.array([[float(chosen.sum())]]))[0, 0])
        return float(tokens.sum()) / (time + float((reading * tokens * (chosen > 0)).sum()))

    chosen, free = (allocate(rows, seconds, prefill=told) for told in (reading, 0 * reading))
    assert rate(tuple(chosen)) > 0.98 * max(map(rate, itertools.product(range(5), repeat=3)))
    assert rate(tuple(chosen)) >= rate(tuple(free))
