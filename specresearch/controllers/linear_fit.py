"""Least squares with a memory that fades, for figures that are never negative and sometimes absurd."""

from collections.abc import Sequence
from operator import mul

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

_START_ROUNDS = 40  # of reweighting, which turns least squares into least absolute deviations
_START_RIDGE = (
    1e-4  # of what all observations say: decides between features that did not vary apart
)
_RIDGE = 0.01  # what holds a weight where it was while nothing is known of it any more
_CLIP = 4.0  # an observation may exceed its prediction by so many usual errors, and by so many times more the next time
_DOUBT = 0.5  # what older observations still count after a second surprise in a row, and after each further one
_STRANGE, _SOLVE_EVERY = (
    2.0,
    16,
)  # usual errors after which the weights are found anew; observations, otherwise
_LEARNING = 0.1  # weight of the newest error in the usual one
_LEAST_USUAL = 1e-9  # seconds
_NOISE = 0.02  # the usual error is never taken for less than this share of the figure itself


class LinearFit:
    """y = x . weights with weights >= 0, learnt online: recursive least squares with forgetting, kept feasible.

    The first `num_start` observations are fitted at once by least absolute deviations, so that slow first calls do not count.
    Later ones move the weights by what they differ, clipped upwards: nothing is faster than it is, but anything may be slow
    once. A single outlier moves them little; with every surprise in a row more is believed, and what was seen before counts less,
    so that a lasting change is followed. Directions without new information keep their weights instead of winding up.

    Weights move with `update`: if an observation was strange, and every few observations otherwise, which takes less time.

    num_surprises: how many observations in a row exceeded what was credible. was_gain: the last one was as far below.
    x should have columns of a size near 1: where features did not vary apart, the larger one gets the larger weight.
    memory: observations after which an old one counts 1/e.
    """

    def __init__(self, num_features: int, num_start: int, memory: float = 50.0) -> None:
        self.num_start = num_start
        self.weights = [0.0] * num_features
        self._decay = 1 - 1 / memory
        self._ridge = _RIDGE * np.eye(num_features)
        self._information = np.zeros((num_features, num_features))  # sum of x x'
        self._evidence = np.zeros(num_features)  # sum of x y
        self._usual = 0.0
        self.num_surprises, self.was_gain = 0, False
        self._was_strange = False  # since the weights were found
        # x, y, and what an observation leaves of those before it
        self._unused: list[tuple[Sequence[float], float, float]] = []

    @property
    def is_ready(self) -> bool:
        return self._usual > 0

    def predict(self, x: Sequence[float]) -> float:
        return sum(map(mul, x, self.weights))

    def observe(self, x: Sequence[float], y: float) -> None:
        if self.is_ready:
            self._follow(x, y)
            return
        self._unused.append((x, y, 1.0))
        if len(self._unused) >= self.num_start:
            self._start()

    def _take(
        self,
    ) -> tuple[Float[np.ndarray, "n F"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        x, y, left = map(np.array, zip(*self._unused, strict=True))
        self._unused, self._was_strange = [], False
        return x, y, left

    def _start(self) -> None:
        x, y, _ = self._take()
        small = np.eye(x.shape[1])
        floor = 1e-3 * float(np.median(np.abs(y))) + 1e-12
        error, weights = np.ones_like(y), np.zeros(x.shape[1])
        for _ in range(_START_ROUNDS):
            root = np.maximum(error, floor) ** -0.5
            shrink = small * (_START_RIDGE * (root**2).sum()) ** 0.5
            rows = np.concatenate([x * root[:, None], shrink])
            weights, _ = nnls(rows, np.concatenate([y * root, np.zeros(len(small))]))
            error = np.abs(y - x @ weights)
        self._usual = max(float(np.median(error)), _LEAST_USUAL)
        self._information, self._evidence = x.T @ x, x.T @ x @ weights
        self.weights = weights.tolist()

    def _follow(self, x: Sequence[float], y: float) -> None:
        predicted = self.predict(x)
        usual = max(self._usual, _NOISE * abs(predicted))
        credible = usual * _CLIP ** (1 + self.num_surprises)
        error = min(y - predicted, credible)
        self.num_surprises = self.num_surprises + 1 if y - predicted > credible else 0
        self.was_gain = predicted - y > credible
        self._usual = max(
            usual + _LEARNING * (min(abs(error), _CLIP * usual) - usual), _LEAST_USUAL
        )
        self._unused.append(
            (x, predicted + error, self._decay if self.num_surprises < 2 else _DOUBT)
        )
        self._was_strange |= abs(error) > _STRANGE * usual

    def update(self) -> None:
        """Let the weights say what was observed."""
        if self.is_ready and (self._was_strange or len(self._unused) >= _SOLVE_EVERY):
            self._solve()

    def _solve(self) -> None:
        x, y, left = self._take()
        worth = np.append(left[:0:-1].cumprod()[::-1], 1.0)
        before = left.prod()
        self._information = before * self._information + x.T * worth @ x
        self._evidence = before * self._evidence + x.T @ (worth * y)
        root = np.linalg.cholesky(self._information + self._ridge)
        known = self._evidence + _RIDGE * np.array(self.weights)
        weights, _ = nnls(root.T, np.linalg.solve(root, known))
        self.weights = weights.tolist()
