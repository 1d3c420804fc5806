"""Fits of times that are sometimes absurd."""

import numpy as np
import pytest

from specresearch.controllers.window_fit import WindowFit

TRUE = np.array([5.0, 2.0, 0.5])


def observe(fit: WindowFit, rng: np.random.Generator, num: int, scale: float = 1.0) -> None:
    for _ in range(num):
        kind = int(rng.integers(0, 4))
        x = [1.0, float(kind), float(rng.uniform(0, 3))]
        noise = float(np.exp(0.05 * rng.standard_normal()))
        fit.observe(kind, x, scale * float(TRUE @ x) * noise)


def test_finds_the_weights_despite_noise_and_absurd_times() -> None:
    fit, rng = WindowFit(3, 50.0), np.random.default_rng(0)
    observe(fit, rng, 60)
    for kind in range(4):
        fit.observe(kind, [1.0, float(kind), 1.0], 500.0)
    fit.solve()
    assert fit.weights == pytest.approx(TRUE, rel=0.15)


def test_weights_are_never_negative() -> None:
    fit = WindowFit(2, 50.0)
    for x in (0.0, 1.0, 2.0):
        fit.observe(x, [1.0, x], 3.0 - x)
    fit.solve()
    assert min(fit.weights) >= 0


def test_large_steps_do_not_hold_the_weights_of_small_ones() -> None:
    """One plain step among trees of hundreds of nodes, as a forecast may tell them."""
    fit, true = WindowFit(3, 50.0), [30.0, 4.0, 0.5]
    for num_nodes in (0, 40, 150, 160, 545, 600, 640):
        x = [1.0, float(num_nodes > 0), num_nodes / 16]
        fit.observe("foreseen", x, float(np.dot(true, x)))
    fit.solve()
    assert fit.predict([1.0, 0.0, 0.0]) == pytest.approx(30.0, rel=0.1)
    assert fit.predict([1.0, 1.0, 0.5]) == pytest.approx(34.25, rel=0.05)


def test_follows_a_change() -> None:
    fit, rng = WindowFit(3, 20.0), np.random.default_rng(0)
    observe(fit, rng, 60)
    observe(fit, rng, 60, scale=3.0)
    fit.solve()
    assert fit.weights == pytest.approx(3 * TRUE, rel=0.15)


def test_what_was_measured_long_ago_is_not_forgotten() -> None:
    """A hundred steps of another kind, of which the fit keeps only the newest."""
    fit = WindowFit(2, 20.0)
    for _ in range(3):
        fit.observe("plain", [1.0, 0.0], 10.0)
    for _ in range(100):
        fit.observe("drafting", [1.0, 1.0], 14.0)
        fit.solve()
    assert fit.weights == pytest.approx([10.0, 4.0], rel=0.05)


def test_noise_within_a_request_does_not_lead_astray_in_the_next() -> None:
    """Each request's context hardly varies, and the next one's may be twice as long."""
    worst = 0.0
    for seed in range(20):
        fit, rng = WindowFit(2, 50.0), np.random.default_rng(seed)
        for start in rng.uniform(0.1, 0.3, 6):
            for number in range(60):
                context = float(start) + number / 1000
                slow = 1.4 if rng.random() < 0.3 else 1.0  # as on a machine that others use too
                fit.observe("plain", [1.0, context], 8.5 * slow)
                if number % 8 == 4:
                    fit.solve()
                    worst = max(worst, abs(fit.predict([1.0, context]) / 8.5 - 1))
    assert worst < 0.5
