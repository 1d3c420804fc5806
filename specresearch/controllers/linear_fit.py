"""Online least squares with forgetting, for times that are never negative and sometimes absurd."""

from collections.abc import Sequence
from operator import mul

import numpy as np
from jaxtyping import Float

_START_ROUNDS = 40  # of reweighting, which turns least squares into least absolute deviations
_START_RIDGE = 1e-4  # of all information: decides between features that did not vary apart
_RIDGE = 0.01  # keeps a weight where it was once nothing is known about it any more
_CLIP = 4.0  # usual errors by which an observation may exceed its prediction
_DOUBT = 0.5  # what older observations still count after each surprise in a row but the first
_LARGE_ERROR = 2.0  # usual errors after which the weights are solved for at once
_SOLVE_EVERY = 16  # observations after which they are solved for in any case
_ERROR_RATE = 0.1  # weight of the newest error in the usual one
_MIN_USUAL = 1e-9  # seconds
_MIN_NOISE = 0.02  # the usual error is at least this share of the prediction


class LinearFit:
    """Fits y = x . weights with weights >= 0 by recursive least squares with forgetting.

    The first `num_start` observations are fitted at once by least absolute deviations, so that slow
    first calls do not count. Later ones move the weights by their error. Errors upwards are
    clipped, since anything may be slow once but nothing is faster than it is. Every further
    surprise in a row is believed more and makes older observations count less, so that a lasting
    change is followed. Directions without new information keep their weights instead of winding up.

    Args:
        num_features: Length of x. Features should be near 1 in size: where they did not vary apart,
            the larger one gets the larger weight.
        memory: Observations after which an old one counts 1/e.

    Attributes:
        num_surprises: How many observations in a row were implausibly large.
        was_gain: Whether the last observation was implausibly small.
    """

    def __init__(self, num_features: int, num_start: int, memory: float = 50.0) -> None:
        self.num_start = num_start
        self.weights = [0.0] * num_features
        self.num_surprises = 0
        self.was_gain = False
        self._decay = 1 - 1 / memory
        self._ridge = _RIDGE * np.eye(num_features)
        self._information = np.zeros((num_features, num_features))  # sum of x x'
        self._evidence = np.zeros(num_features)  # sum of x y
        self._usual_error = 0.0
        self._had_large_error = False  # since the weights were solved for
        # x, y, and what an observation leaves of those before it.
        self._pending: list[tuple[Sequence[float], float, float]] = []

    @property
    def is_ready(self) -> bool:
        return self._usual_error > 0

    def predict(self, x: Sequence[float]) -> float:
        return sum(map(mul, x, self.weights))

    def observe(self, x: Sequence[float], y: float) -> None:
        """Take note of an observation; `update` moves the weights."""
        if self.is_ready:
            self._observe_error(x, y)
            return
        self._pending.append((x, y, 1.0))
        if len(self._pending) >= self.num_start:
            self._start()

    def update(self) -> None:
        """Solve for the weights after a large error, or every few observations to save time."""
        if self.is_ready and (self._had_large_error or len(self._pending) >= _SOLVE_EVERY):
            self._solve()

    def _pop_pending(
        self,
    ) -> tuple[Float[np.ndarray, "n F"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        x, y, kept = map(np.array, zip(*self._pending, strict=True))
        self._pending = []
        self._had_large_error = False
        return x, y, kept

    def _start(self) -> None:
        x, y, _ = self._pop_pending()
        identity = np.eye(x.shape[1])
        floor = 1e-3 * float(np.median(np.abs(y))) + 1e-12
        error = np.ones_like(y)
        weights = np.zeros(x.shape[1])
        for _ in range(_START_ROUNDS):
            root = np.maximum(error, floor) ** -0.5
            shrink = identity * (_START_RIDGE * (root**2).sum()) ** 0.5
            rows = np.concatenate([x * root[:, None], shrink])
            weights = _nonnegative_least_squares(
                rows, np.concatenate([y * root, np.zeros(len(identity))])
            )
            error = np.abs(y - x @ weights)
        self._usual_error = max(float(np.median(error)), _MIN_USUAL)
        self._information = x.T @ x
        self._evidence = x.T @ x @ weights
        self.weights = weights.tolist()

    def _observe_error(self, x: Sequence[float], y: float) -> None:
        predicted = self.predict(x)
        usual = max(self._usual_error, _MIN_NOISE * abs(predicted))
        credible = usual * _CLIP ** (1 + self.num_surprises)
        error = min(y - predicted, credible)
        self.num_surprises = self.num_surprises + 1 if y - predicted > credible else 0
        self.was_gain = predicted - y > credible
        change = _ERROR_RATE * (min(abs(error), _CLIP * usual) - usual)
        self._usual_error = max(usual + change, _MIN_USUAL)
        kept = self._decay if self.num_surprises < 2 else _DOUBT
        self._pending.append((x, predicted + error, kept))
        self._had_large_error |= abs(error) > _LARGE_ERROR * usual

    def _solve(self) -> None:
        x, y, kept = self._pop_pending()
        worth = np.append(kept[:0:-1].cumprod()[::-1], 1.0)
        before = kept.prod()
        self._information = before * self._information + x.T * worth @ x
        self._evidence = before * self._evidence + x.T @ (worth * y)
        root = np.linalg.cholesky(self._information + self._ridge)
        known = self._evidence + _RIDGE * np.array(self.weights)
        weights = _nonnegative_least_squares(root.T, np.linalg.solve(root, known))
        self.weights = weights.tolist()


def _nonnegative_least_squares(
    x: Float[np.ndarray, "n F"], y: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " F"]:
    from scipy.optimize import nnls  # takes long to import, and most runs fit nothing

    weights, _ = nnls(x, y)
    return weights
