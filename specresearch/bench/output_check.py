"""Is what a sampled run emits a sample of the target's distribution? Asked of every token, as the verifier saw it.

Given the tokens before it, a token of lossless decoding is a draw from p, the target's distribution after temperature,
truncation and penalties, whatever was drafted. So any score of it, less its mean under p, is a martingale difference with a
known variance, and it stays one where outputs stop. The sums of three scores are held against their covariance (Wald).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from specresearch.engine import Step
from specresearch.proposal import upload
from specresearch.sampling import logits_to_probs

SCORES = (
    "log p",
    "p",
    "rank",
)  # rank: the share of p on lower token ids, and half of the token's own
FLOOR = -7.0  # of log p: what is less likely counts as this, so that no single token decides
CHANGED = 1e-4  # p-values below it mean that the distribution is another one
P_VALUES = (
    "output_p_value",
    "baseline_output_p_value",
)  # figures of a side, and of plain decoding as its control
_SMALL = 1e-9
SCORE_DEFINITIONS = {
    "output_z": f"of every sampled token, under the target's distribution at its place as the verifier computed it: log p (not "
    f"below {FLOOR:g}), p, and the rank (the share of p on lower token ids, and half of the token's own), each less its mean; "
    "the sum in standard deviations",
    "output_p_value": "probability of sums at least as far from 0 if every token is a draw from that distribution (chi-square of "
    f"all three); below {CHANGED:g} the output's distribution is called changed. baseline_*: of plain decoding, as a control",
}


@dataclass(frozen=True)
class OutputScores:
    """Sums over emitted tokens.

    excess: of each of SCORES, less its mean. covariance: of these sums, row by row. num_impossible: tokens that the target's
    distribution excludes.
    """

    num_tokens: int = 0
    num_impossible: int = 0
    excess: tuple[float, ...] = (0.0,) * len(SCORES)
    covariance: tuple[float, ...] = (0.0,) * len(SCORES) ** 2

    def __add__(self, other: "OutputScores") -> "OutputScores":
        excess, covariance = (
            tuple(a + b for a, b in zip(own, more, strict=True))
            for own, more in ((self.excess, other.excess), (self.covariance, other.covariance))
        )
        impossible = self.num_impossible + other.num_impossible
        return OutputScores(self.num_tokens + other.num_tokens, impossible, excess, covariance)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "OutputScores":
        return OutputScores(
            row["num_tokens"], row["num_impossible"], tuple(row["excess"]), tuple(row["covariance"])
        )

    @property
    def z(self) -> dict[str, float]:
        """Return each score's sum in standard deviations; 0 where it could not vary."""
        variances = np.reshape(self.covariance, (len(SCORES),) * 2).diagonal()
        return {
            name: float(excess / variance**0.5) if variance > _SMALL else 0.0
            for name, excess, variance in zip(SCORES, self.excess, variances, strict=True)
        }

    @property
    def p_value(self) -> float:
        """Return the probability of sums at least as far from 0 under the target's distribution."""
        if self.num_impossible:
            return 0.0
        covariance = np.reshape(self.covariance, (len(SCORES),) * 2)
        scale = np.sqrt(covariance.diagonal().clip(_SMALL))
        variances, axes = np.linalg.eigh(covariance / np.outer(scale, scale))
        used = variances > 1e-6
        if not used.any():
            return 1.0
        along = axes.T @ (np.array(self.excess) / scale)
        return float(stats.chi2.sf((along[used] ** 2 / variances[used]).sum(), int(used.sum())))


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
    """Score the tokens that one step delivered: token i of a row was drawn after node i of its accepted path."""
    batch, proposal, output, delivery = step.batch, step.proposal, step.output, step.delivery
    device, width = output.logits.device, max(delivery.num_new)
    path = delivery.verdict.path[:, :width].clamp(min=0).to(device)
    new = upload(
        [
            row.newest(n) + [0] * (width - n)
            for row, n in zip(batch.rows, delivery.num_new, strict=True)
        ],
        device,
        torch.long,
    )
    row = torch.arange(len(batch), device=device)[:, None]
    on_path = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    on_path[:, :1] = False  # the root is committed already
    probs = logits_to_probs(
        output.logits[row, path], batch.sampling, proposal.token_ids.gather(1, path), on_path[None]
    )
    lengths = [
        0 if params.is_greedy else n
        for params, n in zip(batch.sampling.params, delivery.num_new, strict=True)
    ]
    is_new = torch.arange(width, device=device) < upload(lengths, device)[:, None]
    return score(probs[is_new], new[is_new])


def score(probs: Float[Tensor, "n V"], token_ids: Int[Tensor, " n"]) -> OutputScores:
    """Score tokens that claim to be drawn from the rows of `probs`."""
    if not len(token_ids):
        return OutputScores()
    p = probs.double()
    p = p / p.sum(1, keepdim=True)
    values = torch.stack(
        [p.clamp(min=1e-300).log().clamp(min=FLOOR), p, p.cumsum(1) - p / 2], dim=2
    )  # [n, V, 3]
    means = torch.einsum("nv,nvs->ns", p, values)
    centred = values - means[:, None]
    covariance = torch.einsum("nv,nvs,nvt->st", p, centred, centred)
    index = torch.arange(len(p), device=p.device)
    excess = centred[index, token_ids].sum(0)
    num_impossible = (p[index, token_ids] == 0).sum()
    told = torch.cat([num_impossible[None].double(), excess, covariance.flatten()]).tolist()  # sync
    return OutputScores(
        len(token_ids),
        int(told[0]),
        tuple(told[1 : 1 + len(SCORES)]),
        tuple(told[1 + len(SCORES) :]),
    )
