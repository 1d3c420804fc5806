"""Least squares with a memory that fades, for figures that are never negative and sometimes absurd."""

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

_START_ROUNDS = 40  # of reweighting, which turns least squares into least absolute deviations
_START_RIDGE = 1e-4  # of what all observations say: decides between features that did not vary apart
_RIDGE = 0.01  # what holds a weight where it was while nothing is known of it any more
_CLIP = 4.0  # an observation may exceed its prediction by so many usual errors, and by so many times more the next time
_DOUBT = 0.5  # what older observations still count after a second surprise in a row, and after each further one
_LEARNING = 0.1  # weight of the newest error in the usual one
_NOISE = 0.02  # the usual error is never taken for less than this share of the figure itself


class LinearFit:
    """y = x . weights with weights >= 0, learnt online: recursive least squares with forgetting, kept feasible at every step.

    The first `num_start` observations are fitted at once by least absolute deviations, so that slow first calls do not count.
    Later ones move the weights by what they differ, clipped upwards: nothing is faster than it is, but anything may be slow
    once. A single outlier moves them little; with every surprise in a row more is believed, and what was seen before counts less,
    so that a lasting change is followed. Directions without new information keep their weights instead of winding up.

    num_surprises: how many observations in a row exceeded what was credible.
    x should have columns of a size near 1: where features did not vary apart, the larger one gets the larger weight.
    memory: observations after which an old one counts 1/e.
    """

    def __init__(self, num_features: int, num_start: int, memory: float = 50.0) -> None:
        self.num_start = num_start
        self.weights: Float[np.ndarray, " F"] = np.zeros(num_features)
        self._decay = 1 - 1 / memory
        self._ridge = _RIDGE * np.eye(num_features)
        self._information = np.zeros((num_features, num_features))  # sum of x x'
        self._evidence = np.zeros(num_features)  # sum of x y
        self._usual = 0.0
        self.num_surprises = 0
        self._first: list[tuple[Float[np.ndarray, " F"], float]] = []

    @property
    def is_ready(self) -> bool:
        return len(self._first) >= self.num_start

    def predict(self, x: Float[np.ndarray, " F"]) -> float:
        return float(x @ self.weights)

    def observe(self, x: Float[np.ndarray, " F"], y: float) -> None:
        if self.is_ready:
            self._follow(x, y)
            return
        self._first.append((x, y))
        if self.is_ready:
            self._start()

    def _start(self) -> None:
        x, y = np.array([row for row, _ in self._first]), np.array([value for _, value in self._first])
        small = np.eye(x.shape[1])
        floor = 1e-3 * float(np.median(np.abs(y))) + 1e-12
        error = np.ones_like(y)
        for _ in range(_START_ROUNDS):
            root = np.maximum(error, floor) ** -0.5
            shrink = small * (_START_RIDGE * (root**2).sum()) ** 0.5
            rows = np.concatenate([x * root[:, None], shrink])
            self.weights, _ = nnls(rows, np.concatenate([y * root, np.zeros(len(small))]))
            error = np.abs(y - x @ self.weights)
        self._usual = float(np.median(error))
        self._information, self._evidence = x.T @ x, x.T @ x @ self.weights

    def _follow(self, x: Float[np.ndarray, " F"], y: float) -> None:
        predicted = self.predict(x)
        usual = max(self._usual, _NOISE * abs(predicted), 1e-9)
        credible = usual * _CLIP ** (1 + self.num_surprises)
        error = min(y - predicted, credible)
        self.num_surprises = self.num_surprises + 1 if y - predicted > credible else 0
        decay = self._decay if self.num_surprises < 2 else _DOUBT
        self._information = decay * self._information + x[:, None] * x
        self._evidence = decay * self._evidence + x * (predicted + error)
        root = np.linalg.cholesky(self._information + self._ridge)
        self.weights, _ = nnls(root.T, np.linalg.solve(root, self._evidence + _RIDGE * self.weights))
        self._usual = usual + _LEARNING * (min(abs(error), _CLIP * usual) - usual)
