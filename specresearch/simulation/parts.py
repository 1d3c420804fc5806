"""The parts of a step's time, each linear in features of its work, with weights that are never negative."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from specresearch.simulation.timing import Work

_ROUNDS = 30  # of reweighting, which turns least squares into least absolute deviations
_RIDGE = 1e-6  # of what all steps say: decides between features that did not vary apart
_VERIFY_EDGES = (0, 1, 2, 8, 32, 128, 512)
_PREFILL_EDGES = (0, 64, 512, 4096, 32768)

Features = Callable[[Work], list[int | float]]


@dataclass(frozen=True)
class Part:
    """seconds = features(work) . weights; more work is never faster."""

    features: Features
    weights: Float[np.ndarray, " F"]

    @staticmethod
    def fit(
        features: Features,
        works: Sequence[Work],
        seconds: Float[np.ndarray, " n"],
        *,
        keep_sum: bool = True,
    ) -> "Part":
        """The least sum of |error| / seconds, so that short steps count as much as long ones and absurd ones little.

        Steps without any of these features say nothing. keep_sum: scaled to add up to the measured seconds, absurd ones included.
        """
        x = np.array([features(work) for work in works], dtype=float).reshape(
            len(works), len(features(Work()))
        )
        told = x.any(axis=1)
        x, y = x[told], seconds[told]
        if not len(y):
            return Part(features, np.zeros(x.shape[1]))
        scale = np.maximum(x.max(0), 1e-12)
        x = x / scale
        unit = np.maximum(y, 0.1 * float(np.median(y)) + 1e-9)
        error, weights = np.ones(len(y)), np.zeros(x.shape[1])
        for _ in range(_ROUNDS):
            weight = 1 / np.maximum(error, 1e-3) / unit**2
            information = (x * weight[:, None]).T @ x
            information += (_RIDGE * np.trace(information) / len(scale) + 1e-30) * np.eye(
                len(scale)
            )
            root = np.linalg.cholesky(information)
            weights, _ = nnls(root.T, np.linalg.solve(root, x.T @ (weight * y)))
            error = np.abs(y - x @ weights) / unit
        total = float((x @ weights).sum())
        return Part(
            features, weights / scale * (float(y.sum()) / total if total and keep_sum else 1.0)
        )

    def seconds(self, work: Work) -> float:
        return sum(map(mul, self.features(work), self._weights))

    @cached_property
    def _weights(self) -> list[float]:
        return self.weights.tolist()


def _rises(value: int, edges: Sequence[int]) -> list[int]:
    """How much of `value` lies between each edge and the next: what is linear in these is linear between the edges."""
    return [
        min(max(value - low, 0), high - low)
        for low, high in zip(edges, (*edges[1:], 1 << 30), strict=True)
    ]


def of_verify(work: Work) -> list[int | float]:
    """Tokens, padding, rows (each may be a call of attention), what attention reads, and what it computes: every node with
    every token before it, by row or padded, as the machine may do either; and whether a prompt was read just before, which leaves
    caches cold."""
    if not work.num_rows:
        return [0.0] * (len(_VERIFY_EDGES) + 7)
    rows, tokens = work.num_rows, work.num_tokens
    num_padded, rises = rows * work.num_nodes, _rises(tokens, _VERIFY_EDGES)
    has_read = work.num_prefill_tokens + work.num_lazy_prefill_tokens > 0
    return [
        1.0,
        *rises,
        num_padded - tokens,
        rows,
        work.context,
        work.attended,
        num_padded * work.max_context,
        has_read,
    ]


def of_propose(work: Work) -> list[int | float]:
    """A pass for each draft of the longest, as a draft LM makes them; and what is done for every row, as a search is. Nothing is
    done where no drafts are asked for."""
    if not (work.is_asked and work.num_rows):
        return [0.0] * 6
    rows, longest, num_drafts = work.num_rows, work.longest, work.num_drafts
    return [1.0, rows, longest > 0, longest, num_drafts, work.context / rows * num_drafts]


def of_overhead(work: Work) -> list[int | float]:
    return (
        [1.0, work.num_rows, work.num_tokens, work.num_rows * work.num_nodes]
        if work.num_rows
        else [0.0] * 4
    )


def of_prefill(work: Work) -> list[int | float]:
    """Some drafters read prompts along with the target."""
    tokens = work.num_prefill_tokens
    if not tokens:
        return [0.0] * (len(_PREFILL_EDGES) + 3)
    return [1.0, *_rises(tokens, _PREFILL_EDGES), work.can_draft, tokens * work.can_draft]


def of_lazy_prefill(work: Work) -> list[int | float]:
    return [1.0, work.num_lazy_prefill_tokens] if work.num_lazy_prefill_tokens else [0.0, 0.0]


def of_between(work: Work) -> list[int | float]:
    return [1.0, work.num_rows]
