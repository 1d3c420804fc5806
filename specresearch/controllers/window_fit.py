"""A linear fit of times to the newest steps of every kind."""

from collections.abc import Hashable, Sequence
from operator import mul

import numpy as np

_WINDOW = 16  # steps of each kind that count: enough for an absurd one to be outvoted
# Rounds of reweighting, which turns least squares into least absolute deviations, until the weights
# change by less than this share: mostly one, as they hardly change from one solution to the next.
_ROUNDS, _SETTLED = 3, 0.01
_RIDGE = 1.2e-3  # of all information: what did not vary keeps its weight


class WindowFit:
    """Fits y = x . weights with weights >= 0 by least absolute deviations.

    The newest steps of each kind are kept, however long ago, so that what is rarely measured is not
    forgotten; where steps contradict one another, newer ones count more.

    Args:
        num_features: Length of x; features should be near 1 in size.
        memory: Steps after which an observation counts 1/e.
    """

    def __init__(self, num_features: int, memory: float) -> None:
        from scipy.optimize import nnls  # takes long to import, and few runs need it

        self.weights = [0.0] * num_features
        self._nnls = nnls
        self._memory = memory
        self._kinds: dict[Hashable, list[int]] = {}  # first row and number of observations
        self._rows = np.zeros((num_features, num_features + 2))  # x, y and the step
        # One row for each weight keeps it as it was where nothing varied.
        self._rows[:, :num_features] = np.eye(num_features)
        self._step = 0
        self._is_new = False

    def predict(self, x: Sequence[float]) -> float:
        return sum(map(mul, x, self.weights))

    def observe(self, kind: Hashable, x: Sequence[float], y: float) -> None:
        """Take note of a step; `solve` moves the weights."""
        if kind not in self._kinds:
            empty = np.zeros((_WINDOW, self._rows.shape[1]))
            empty[:, -1] = -np.inf
            self._kinds[kind] = [len(self._rows), 0]
            self._rows = np.concatenate([self._rows, empty])
        place = self._kinds[kind]
        self._step += 1
        self._rows[place[0] + place[1] % _WINDOW] = [*x, y, self._step]
        place[1] += 1
        self._is_new = True

    def solve(self) -> None:
        """Let the weights follow the observations."""
        if not self._is_new:
            return
        self._is_new = False
        num_weights, weights = len(self.weights), np.array(self.weights)
        self._rows[:num_weights, -2] = weights
        table, steps = self._rows[:, :-1], self._rows[num_weights:, -1]
        x, y = table[num_weights:, :-1], table[num_weights:, -1]
        trust = np.exp((steps - self._step) / self._memory)
        floor = 1e-3 * float(np.abs(y).max()) + 1e-12
        worth = np.empty(len(table))
        for _ in range(_ROUNDS):
            worth[num_weights:] = trust / np.maximum(np.abs(y - x @ weights), floor)
            worth[:num_weights] = _RIDGE * worth[num_weights:].sum() + 1e-15
            weighted = np.sqrt(worth)[:, None] * table
            before, weights = weights, self._nnls(weighted[:, :-1], weighted[:, -1])[0]
            if np.abs(weights - before).sum() < _SETTLED * weights.sum():
                break
        self.weights = weights.tolist()
