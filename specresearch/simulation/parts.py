"""The parts of a step's time, each linear in features of its work, without negative weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from specresearch.simulation.timing import Work

_ROUNDS = 30  # of reweighting, which turns least squares into least absolute deviations
_RIDGE = 1e-6  # of all information: decides between features that did not vary apart
_VERIFY_EDGES = (0, 1, 2, 8, 32, 128, 512)
_PREFILL_EDGES = (0, 64, 512, 4096, 32768)

Features = Callable[[Work], list[int | float]]


@dataclass(frozen=True)
class StepPart:
    """Predicts seconds = features(work) . weights. More work is never faster.

    A step without work for this part has no features and takes no time.
    """

    features: Features
    weights: Float[np.ndarray, " F"]

    @staticmethod
    def fit(
        features: Features,
        works: Sequence[Work],
        seconds: Float[np.ndarray, " n"],
        *,
        keep_sum: bool = True,
    ) -> "StepPart":
        """Fit the weights to measured steps.

        The least sum of |error| / seconds is sought, so that short steps count as much as long ones
        and outliers little. Steps without features are left out.

        Args:
            keep_sum: Scale the predictions to add up to the measured seconds, outliers included.
        """
        rows = [features(work) for work in works]
        y = seconds[[bool(row) for row in rows]]
        if not len(y):
            return StepPart(features, np.zeros(0))
        x = np.array([row for row in rows if row], dtype=float)
        scale = np.maximum(x.max(0), 1e-12)
        x = x / scale
        weights = _least_relative_deviations(x, y)
        total = float((x @ weights).sum())
        factor = float(y.sum()) / total if total and keep_sum else 1.0
        return StepPart(features, weights / scale * factor)

    def seconds(self, work: Work) -> float:
        """Return the predicted seconds."""
        return float(sum(map(mul, self.features(work), self._weights)))

    @cached_property
    def _weights(self) -> list[float]:
        return self.weights.tolist()


def _least_relative_deviations(
    x: Float[np.ndarray, "n F"], y: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " F"]:
    """Return weights that are not negative, by least squares reweighted again and again."""
    num_features = x.shape[1]
    unit = np.maximum(y, 0.1 * float(np.median(y)) + 1e-9)
    error = np.ones(len(y))
    weights = np.zeros(num_features)
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(error, 1e-3) / unit**2
        information = (x * weight[:, None]).T @ x
        ridge = _RIDGE * np.trace(information) / num_features + 1e-30
        root = np.linalg.cholesky(information + ridge * np.eye(num_features))
        weights, _ = nnls(root.T, np.linalg.solve(root, x.T @ (weight * y)))
        error = np.abs(y - x @ weights) / unit
    return weights


def _pieces(value: int, edges: Sequence[int]) -> list[int]:
    """Return how much of `value` lies between each edge and the next.

    What is linear in these is linear between the edges.
    """
    pieces = []
    for low, high in zip(edges, (*edges[1:], 1 << 30), strict=True):
        pieces.append(min(max(value - low, 0), high - low))
    return pieces


def of_verify(work: Work) -> list[int | float]:
    """Return tokens, padding, rows, context, attended tokens and whether a prefill came before.

    Each row may be a call of attention. Attention may look at every token before a node, or at
    those of the longest row. A prefill leaves caches cold.
    """
    if not work.num_rows:
        return []
    num_padded = work.num_rows * work.num_nodes
    follows_prefill = work.num_prefill_tokens + work.num_lazy_prefill_tokens > 0
    return [
        1.0,
        *_pieces(work.num_tokens, _VERIFY_EDGES),
        num_padded - work.num_tokens,
        work.num_rows,
        work.context,
        work.attended,
        num_padded * work.max_context,
        follows_prefill,
    ]


def of_propose(work: Work) -> list[int | float]:
    """Return a pass of a draft LM for each draft of the longest, and a search for every row."""
    if not (work.can_draft and work.num_rows):
        return []
    return [
        1.0,
        work.num_rows,
        work.longest > 0,
        work.longest,
        work.num_drafts,
        work.context / work.num_rows * work.num_drafts,
    ]


def of_overhead(work: Work) -> list[int | float]:
    """Return rows, tokens and nodes with padding."""
    if not work.num_rows:
        return []
    return [1.0, work.num_rows, work.num_tokens, work.num_rows * work.num_nodes]


def of_prefill(work: Work) -> list[int | float]:
    """Return tokens of prompts, and again if a method is there, which may prefill as well."""
    num_tokens = work.num_prefill_tokens
    if not num_tokens:
        return []
    pieces = _pieces(num_tokens, _PREFILL_EDGES)
    return [1.0, *pieces, work.can_draft, num_tokens * work.can_draft]


def of_lazy_prefill(work: Work) -> list[int | float]:
    """Return the tokens of a lazy prefill."""
    num_tokens = work.num_lazy_prefill_tokens
    return [1.0, num_tokens] if num_tokens else []


def of_between(work: Work) -> list[int | float]:
    """Return the rows."""
    return [1.0, work.num_rows]
