"""Whether sampled outputs are samples of the target's distribution.

Given the tokens before it, a token of lossless decoding is a draw from p, the target's distribution
after temperature, truncation and penalties, whatever was drafted. So any score of the token, less
its mean under p, is a martingale difference with a known variance, and it stays one where outputs
stop. The sums of three scores are tested against their covariance (Wald).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import chdtrc
from torch import Tensor

from specresearch.engine import Step
from specresearch.proposal import upload
from specresearch.sampling import logits_to_probs

SCORES = ("log p", "p", "rank")  # rank: the mass of p on lower token ids, plus half the token's own
FLOOR = -7.0  # lower values of log p count as this, so that no single token decides
CHANGED = 1e-4  # p-values below it mean that the distribution is another one
P_VALUES = ("output_p_value", "baseline_output_p_value")  # of a side, and of its control
_SMALL = 1e-9
SCORE_DEFINITIONS = {
    "output_z": "scores of every sampled token under the target's distribution at its position, as "
    f"the verifier computed it: log p (not below {FLOOR:g}), p, and the rank (the mass of p on "
    "lower token ids, plus half the token's own), each less its mean; the sum in standard "
    "deviations",
    "output_p_value": "probability of sums at least as far from 0 if every token is a draw from "
    f"that distribution (chi-square of all three); below {CHANGED:g} the output's distribution is "
    "called changed. baseline_*: the same for plain decoding, as a control",
}


@dataclass(frozen=True)
class OutputScores:
    """Sums over emitted tokens.

    Attributes:
        num_impossible: Tokens that the target's distribution excludes.
        excess: The sum of each score, less its mean.
        covariance: The covariance of these sums, row by row.
    """

    num_tokens: int = 0
    num_impossible: int = 0
    excess: tuple[float, ...] = (0.0,) * len(SCORES)
    covariance: tuple[float, ...] = (0.0,) * len(SCORES) ** 2

    def __add__(self, other: "OutputScores") -> "OutputScores":
        return OutputScores(
            self.num_tokens + other.num_tokens,
            self.num_impossible + other.num_impossible,
            tuple(map(add, self.excess, other.excess)),
            tuple(map(add, self.covariance, other.covariance)),
        )

    @staticmethod
    def total(parts: "Iterable[OutputScores | None]") -> "OutputScores | None":
        """Return the sum of the scores of several passes.

        Args:
            parts: None for a pass that was not checked, which makes the sum None too.
        """
        total = None
        for part in parts:
            if part is None:
                return None
            total = (total or OutputScores()) + part
        return total

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "OutputScores":
        """Return scores as they were written."""
        sums = {name: tuple(row[name]) for name in ("excess", "covariance")}
        return OutputScores(row["num_tokens"], row["num_impossible"], **sums)

    @property
    def _covariance_matrix(self) -> Float[np.ndarray, "3 3"]:
        return np.reshape(self.covariance, (len(SCORES),) * 2)

    @property
    def z(self) -> dict[str, float]:
        """Return each score's sum in standard deviations; 0 where it could not vary."""
        z: dict[str, float] = {}
        variances = self._covariance_matrix.diagonal()
        for name, excess, variance in zip(SCORES, self.excess, variances, strict=True):
            z[name] = float(excess / variance**0.5) if variance > _SMALL else 0.0
        return z

    @property
    def p_value(self) -> float:
        """Return the probability of sums at least as far from 0 under the target's distribution."""
        if self.num_impossible:
            return 0.0
        covariance = self._covariance_matrix
        scale = np.sqrt(covariance.diagonal().clip(_SMALL))
        variances, axes = np.linalg.eigh(covariance / np.outer(scale, scale))
        used = variances > 1e-6
        if not used.any():
            return 1.0
        along = axes.T @ (np.array(self.excess) / scale)
        statistic = (along[used] ** 2 / variances[used]).sum()
        return float(chdtrc(int(used.sum()), statistic))


class OutputCheck:
    """A `StepObserver` that scores the tokens of every sampled request."""

    def __init__(self) -> None:
        self._scores = OutputScores()

    def __call__(self, step: Step) -> None:
        self._scores += score_step(step)

    def pop(self) -> OutputScores:
        """Return the scores since the last call."""
        scores, self._scores = self._scores, OutputScores()
        return scores


def score_step(step: Step) -> OutputScores:
    """Score the tokens that one step delivered to sampled requests."""
    logits, sampling = step.output.logits, step.batch.sampling
    nodes, new = step.delivered()
    num_rows, width = nodes.shape
    row = torch.arange(num_rows, device=logits.device)[:, None]
    on_path = torch.ones(width, width, dtype=torch.bool, device=logits.device).tril()
    on_path[:, :1] = False  # the root is committed already
    path_tokens = step.proposal.token_ids.gather(1, nodes)
    probs = logits_to_probs(logits[row, nodes], sampling, path_tokens, on_path[None])
    num_scored = []
    for params, num_new in zip(sampling.params, step.delivery.num_new, strict=True):
        num_scored.append(0 if params.is_greedy else num_new)
    is_scored = (
        torch.arange(width, device=logits.device) < upload(num_scored, logits.device)[:, None]
    )
    return score(probs[is_scored], new[is_scored])


def score(probs: Float[Tensor, "n V"], token_ids: Int[Tensor, " n"]) -> OutputScores:
    """Score tokens that claim to be drawn from the rows of `probs`."""
    if not len(token_ids):
        return OutputScores()
    p = probs.double()
    p = p / p.sum(1, keepdim=True)
    log_p = p.clamp(min=1e-300).log().clamp(min=FLOOR)
    rank = p.cumsum(1) - p / 2
    values = torch.stack([log_p, p, rank], dim=2)  # [n, V, 3]
    means = torch.einsum("nv,nvs->ns", p, values)
    centred = values - means[:, None]
    covariance = torch.einsum("nv,nvs,nvt->st", p, centred, centred)
    index = torch.arange(len(p), device=p.device)
    excess = centred[index, token_ids].sum(0)
    num_impossible = (p[index, token_ids] == 0).sum()
    sums = torch.cat([num_impossible[None].double(), excess, covariance.flatten()])
    on_host = sums.tolist()  # sync
    return OutputScores(
        num_tokens=len(token_ids),
        num_impossible=int(on_host[0]),
        excess=tuple(on_host[1 : 1 + len(SCORES)]),
        covariance=tuple(on_host[1 + len(SCORES) :]),
    )
