"""Lengths that maximise throughput, against every other choice."""

import itertools
import time

import numpy as np
import pytest
from jaxtyping import Float, Int

from specresearch.controllers.allocation import allocate


class Linear:
    """Seconds of a step: base + each * longest + token * drafts."""

    def __init__(self, base: float, each: float, token: float) -> None:
        self.base, self.each, self.token = base, each, token

    def __call__(
        self, longest: Int[np.ndarray, " W"], num_drafts: Float[np.ndarray, "W M"]
    ) -> Float[np.ndarray, "W M"]:
        return self.base + self.each * longest[:, None] + self.token * num_drafts

    def rate(self, acceptance: np.ndarray, lengths: tuple[int, ...]) -> float:
        tokens = sum(float((a ** np.arange(k + 1)).sum()) for a, k in zip(acceptance, lengths, strict=True))
        return tokens / (self.base + self.each * max(lengths) + self.token * sum(lengths))


@pytest.mark.parametrize("seed", range(40))
def test_no_other_lengths_are_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acceptance, limits = rng.uniform(0.05, 0.99, 3), rng.integers(0, 5, 3)
    given = np.where(rng.random(3) < 0.2, rng.integers(0, 5, 3), 0)
    limits[given > 0] = 0
    seconds = Linear(1.0, *10 ** rng.uniform(-3, 0.3, 2))
    choices = itertools.product(
        *[[g] if g else range(limit + 1) for g, limit in zip(given.tolist(), limits.tolist(), strict=True)]
    )
    chosen = tuple(allocate(acceptance, limits, given, seconds).tolist())
    best = max(choices, key=lambda lengths: seconds.rate(acceptance, lengths))
    assert seconds.rate(acceptance, chosen) == pytest.approx(seconds.rate(acceptance, best), rel=1e-9)
    assert all(g <= k <= max(g, limit) for g, k, limit in zip(given, chosen, limits, strict=True))


def test_one_length_for_all_is_slower_where_requests_differ() -> None:
    acceptance, none = np.array([0.95, 0.9, 0.2, 0.1]), np.zeros(4, dtype=int)
    seconds = Linear(1.0, 0.02, 0.1)
    chosen = tuple(allocate(acceptance, np.full(4, 8), none, seconds).tolist())
    common = max(seconds.rate(acceptance, (k,) * 4) for k in range(9))
    assert seconds.rate(acceptance, chosen) > 1.1 * common
    assert chosen[0] >= chosen[1] > chosen[2] >= chosen[3]


def test_nothing_is_drafted_without_room_or_gain() -> None:
    acceptance, none = np.array([0.9, 0.9]), np.zeros(2, dtype=int)
    assert allocate(acceptance, none, none, Linear(1.0, 0.0, 0.0)).tolist() == [0, 0]
    assert allocate(acceptance, np.array([5, 5]), none, Linear(1.0, 2.0, 0.0)).tolist() == [0, 0]


def test_a_row_without_a_choice_makes_room_for_the_others() -> None:
    """Drafting is paid by the longest row, so one that drafts anyway lets the others draft as far for nothing."""
    acceptance, seconds = np.array([0.6, 0.6]), Linear(1.0, 0.5, 0.0)
    free = allocate(acceptance, np.array([6, 6]), np.zeros(2, dtype=int), seconds)
    led = allocate(acceptance, np.array([6, 0]), np.array([0, 6]), seconds)
    assert free.tolist() == [1, 1]
    assert led.tolist() == [6, 6]


def test_costs_less_than_a_millisecond() -> None:
    """0.1 ms for 32 requests and 10 positions on an idle core; the bound here leaves room for a busy one."""
    acceptance, seconds = np.linspace(0.2, 0.95, 32), Linear(1.0, 0.01, 0.001)
    limits, none = np.full(32, 10), np.zeros(32, dtype=int)
    durations = []
    for _ in range(20):
        begin = time.perf_counter()
        allocate(acceptance, limits, none, seconds)
        durations.append(time.perf_counter() - begin)
    assert min(durations) < 1e-3
