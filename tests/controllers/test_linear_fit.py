"""What the fit learns, what it shrugs off, and what it follows."""

import numpy as np
import pytest

from specresearch.controllers.linear_fit import LinearFit

TRUE = np.array([10.0, 2.0, 0.5])
START = 12


def features(rng: np.random.Generator, num: int) -> np.ndarray:
    return np.stack([np.ones(num), rng.integers(0, 5, num), rng.uniform(0, 4, num)], axis=1)


def fitted(
    num: int, outliers: dict[int, float], noise: float = 0.0
) -> tuple[LinearFit, np.random.Generator]:
    rng = np.random.default_rng(0)
    fit = LinearFit(3, START)
    for i, x in enumerate(features(rng, num)):
        fit.observe(
            x.tolist(),
            float(x @ TRUE * np.exp(noise * rng.standard_normal())) + outliers.get(i, 0.0),
        )
        fit.update()
    return fit, rng


def error(fit: LinearFit, weights: np.ndarray = TRUE) -> float:
    """The largest relative error of a prediction."""
    x = features(np.random.default_rng(1), 50)
    return float(np.abs((x @ fit.weights) / (x @ weights) - 1).max())


def test_exact_figures_are_found_at_once() -> None:
    assert not fitted(START - 1, {})[0].is_ready
    assert error(fitted(START, {})[0]) < 0.01


@pytest.mark.parametrize(
    "outliers", [{0: 5000.0}, {0: 900.0, 1: 2000.0, 5: 50.0}, {30: 5000.0}, {15: 800.0, 40: 1e6}]
)
def test_outliers_do_not_count(outliers: dict[int, float]) -> None:
    assert error(fitted(60, outliers)[0]) < 0.05


def test_negative_control_plain_least_squares_believes_outliers() -> None:
    x = features(np.random.default_rng(0), START)
    y = x @ TRUE
    y[0] += 5000.0
    weights, *_ = np.linalg.lstsq(x, y)
    fit = LinearFit(3, START)
    fit.weights = weights.tolist()
    assert error(fit) > 1


def test_noise_is_averaged() -> None:
    assert error(fitted(200, {}, noise=0.1)[0]) < 0.1


@pytest.mark.parametrize(
    "change", [np.array([3.0, 3.0, 3.0]), np.array([1.0, 5.0, 1.0]), np.array([0.5, 0.2, 0.5])]
)
def test_a_lasting_change_is_followed(change: np.ndarray) -> None:
    fit, rng = fitted(60, {})
    for x in features(rng, 150):
        fit.observe(x.tolist(), float(x @ (TRUE * change)))
        fit.update()
    assert error(fit, TRUE * change) < 0.1


def test_what_is_no_longer_seen_is_remembered() -> None:
    fit, _ = fitted(60, {})
    still = np.array([1.0, 2.0, 1.0])
    for _ in range(1000):
        fit.observe(still.tolist(), float(still @ TRUE))
        fit.update()
    assert error(fit) < 0.05


def test_weights_are_never_negative() -> None:
    rng = np.random.default_rng(3)
    fit = LinearFit(3, START)
    for x in features(rng, 100):
        fit.observe(x.tolist(), float(rng.exponential() - 0.5 * x[1] + 5))
        fit.update()
        assert min(fit.weights) >= 0
