"""Losses of many rows in chunks, so that all logits never exist at once.

Gradients are taken per chunk in the forward pass. Each readout thus runs once, and the target's
serves all drafting steps; activation checkpointing would run both again in the backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from specresearch.sampling import argmax, at_least_float32
from specresearch.training.objectives import (
    CHUNK_ROWS,
    Divergence,
    Labels,
    Logits,
    Losses,
    Objective,
    Readout,
    indices_in,
)


@dataclass(frozen=True)
class DraftRows:
    """The predictions of one drafting step.

    Attributes:
        readout: Maps states to logits over the target's vocabulary, or over `target_ids`.
        valid: Rows that this step predicts.
        weight: Weight of the step's loss.
        samples: True if decoding samples the draft, False if it takes the argmax.
    """

    states: Float[Tensor, "R _"]
    readout: Readout
    valid: Bool[Tensor, " R"]
    weight: float = 1.0
    target_ids: Int[Tensor, " D"] | None = None
    samples: bool = True


@dataclass(frozen=True)
class Peaks:
    """What a reduced vocabulary needs of the target's logits over all tokens.

    Attributes:
        tokens: The likeliest token.
        log_normaliser: The log of the sum of exponentials of the logits at the temperature.
    """

    tokens: Int[Tensor, "*rows"]
    log_normaliser: Float[Tensor, "*rows"]

    @staticmethod
    def of(logits: Float[Tensor, "R V"], objective: Objective) -> "Peaks":
        """Return those of logits over all tokens, at the objective's temperature."""
        target = _TargetRows(objective, logits)
        return Peaks(target.argmax, target.log_normaliser[:, 0])

    def __getitem__(self, rows: slice | tuple[Tensor, Tensor]) -> "Peaks":
        return Peaks(self.tokens[rows], self.log_normaliser[rows])


PEAKS = tuple(field.name for field in fields(Peaks))


def chunked_losses(
    objective: Objective,
    *,
    target_states: Float[Tensor, "R _"],
    target_readout: Readout,
    labels: Labels,
    drafts: Sequence[DraftRows],
    parameters: Sequence[nn.Parameter] = (),
    chunk_rows: int = CHUNK_ROWS,
    peaks: Peaks | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "K 4"]]:
    """Compute the weighted loss of K drafting steps, and totals of each.

    The totals are sums over a step's valid rows: objective, expected acceptance, argmax tokens
    equal to the target's, and row count. Expected acceptance is sum min(p, q) over the whole
    vocabulary, or p of the argmax draft if drafts are not sampled.

    For a reduced vocabulary the objective sees p renormalised, and a row whose target argmax lies
    outside has no loss, as in the reference implementation of EAGLE-3 (arXiv 2503.01840).
    Acceptance and agreement count every row.

    Gradients flow once into the drafts' states and into `parameters`, those that readouts train.
    Memory is about a dozen float32 arrays of chunk_rows x V, plus those gradients.

    Args:
        peaks: Of the target's logits, where `target_readout` returns those of a reduced vocabulary
            alone, which all drafts share.
    """
    chunks = _Chunks(objective, drafts, parameters)

    def run() -> Float[Tensor, "K 4"]:
        for begin in range(0, len(labels), chunk_rows):
            rows = slice(begin, begin + chunk_rows)
            known = None if peaks is None else peaks[rows]
            logits = target_readout(target_states[rows])
            chunks.add(_TargetRows(objective, logits, known), labels[rows], rows)
        return chunks.totals

    return _ChunkedLoss.apply(run, chunks, *(draft.states for draft in drafts), *parameters)


class _ChunkedLoss(torch.autograd.Function):
    """Hands the gradients taken in the forward pass to autograd."""

    @staticmethod
    def forward(ctx: Any, run: Any, chunks: "_Chunks", *inputs: Tensor) -> tuple[Tensor, Tensor]:
        totals = run()
        ctx.gradients = [*chunks.state_gradients, *chunks.parameter_gradients]
        ctx.mark_non_differentiable(totals)
        weights = totals.new_tensor([draft.weight for draft in chunks.drafts])
        return (weights * totals[:, 0]).sum(), totals

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(output_gradients[0])
        return None, None, *gradients


class _TargetRows:
    """The target's predictions for one chunk of rows.

    Of the whole vocabulary a reduced one needs the peaks alone, so the target's log-probabilities
    are computed only where a draft covers all of it.

    Args:
        logits: Over the reduced vocabulary, if peaks are known.
    """

    def __init__(self, objective: Objective, logits: Logits, known: Peaks | None = None) -> None:
        self.objective = objective
        self.logits = at_least_float32(logits)
        self._known = known
        self._reduced: dict[int, Logits] = {}

    @cached_property
    def argmax(self) -> Int[Tensor, " R"]:
        return argmax(self.logits) if self._known is None else self._known.tokens

    @cached_property
    def log_p(self) -> Logits:
        return self.objective.log_probs(self.logits)

    @cached_property
    def log_normaliser(self) -> Float[Tensor, "R 1"]:
        """The log of the sum of exponentials of the logits at the temperature.

        log_softmax takes a sixth of the time of logsumexp on a CPU.
        """
        if self._known is not None:
            return self._known.log_normaliser[:, None]
        scaled, largest = self.objective.scaled(self.logits), self.argmax[:, None]
        return scaled.gather(-1, largest) - scaled.log_softmax(-1).gather(-1, largest)

    def logits_of(self, target_ids: Int[Tensor, " D"]) -> Float[Tensor, "R D"]:
        """Return the logits of a reduced vocabulary, which all drafting steps share."""
        if self._known is not None:
            return self.logits
        if id(target_ids) not in self._reduced:
            self._reduced[id(target_ids)] = self.logits.index_select(1, target_ids)
        return self._reduced[id(target_ids)]

    def loss(self, draft: DraftRows, logits: Logits, log_q: Logits, labels: Labels) -> Losses:
        ids = draft.target_ids
        if not isinstance(self.objective, Divergence):
            if ids is None:
                return self.objective(self.logits, logits, labels)
            return self.objective(self.logits_of(ids), logits, indices_in(labels, ids))
        if ids is None:
            return self.objective.between(self.log_p, log_q)
        log_p = self.objective.log_probs(self.logits_of(ids))
        is_outside = indices_in(self.argmax, ids) < 0
        return self.objective.between(log_p, log_q).masked_fill(is_outside, 0)

    def acceptance(self, draft: DraftRows, log_q: Logits) -> Losses:
        if draft.target_ids is None:
            log_p = self.log_p
        else:
            scaled = self.objective.scaled(self.logits_of(draft.target_ids))
            log_p = scaled - self.log_normaliser
        if draft.samples:
            return torch.minimum(log_p, log_q).exp().sum(-1)
        return log_p.gather(-1, argmax(log_q)[:, None])[:, 0].exp()

    def agreement(self, draft: DraftRows, logits: Logits) -> Bool[Tensor, " R"]:
        drafted = argmax(logits)
        if draft.target_ids is not None:
            drafted = draft.target_ids[drafted]
        return self.argmax == drafted


class _Chunks:
    """Totals and gradients, accumulated over chunks of rows; a gradient is None if unused."""

    def __init__(
        self,
        objective: Objective,
        drafts: Sequence[DraftRows],
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self.objective = objective
        self.drafts = drafts
        self.parameters = parameters
        self.needs_grad = torch.is_grad_enabled()
        device = drafts[0].valid.device
        self.totals = torch.zeros((len(drafts), 4), dtype=torch.float64, device=device)
        self.state_gradients: list[Tensor | None] = [None for _ in drafts]
        if self.needs_grad:
            self.state_gradients = [torch.zeros_like(draft.states) for draft in drafts]
        self.parameter_gradients: list[Tensor | None] = [None for _ in parameters]
        self._used_parameters: list[Sequence[int]] = [range(len(parameters)) for _ in drafts]

    def add(self, target: _TargetRows, labels: Labels, rows: slice) -> None:
        """Add a chunk of rows."""
        totals = [self._add_draft(k, target, labels, rows) for k in range(len(self.drafts))]
        self.totals += torch.stack(totals)

    def _add_draft(
        self, k: int, target: _TargetRows, labels: Labels, rows: slice
    ) -> Float[Tensor, "4"]:
        draft = self.drafts[k]
        valid = draft.valid[rows]
        states = draft.states.detach()[rows].requires_grad_(self.needs_grad)
        with torch.set_grad_enabled(self.needs_grad):
            logits = draft.readout(states)
            log_q = self.objective.log_probs(logits)
            loss = target.loss(draft, logits, log_q, labels).masked_fill(~valid, 0).sum()
            if self.needs_grad:
                self._add_gradients(k, rows, loss * draft.weight, states)
        accepted = target.acceptance(draft, log_q.detach()).masked_fill(~valid, 0).sum()
        agreeing = (target.agreement(draft, logits.detach()) & valid).sum()
        totals = (loss.detach(), accepted, agreeing, valid.sum())
        return torch.stack([total.double() for total in totals])

    def _add_gradients(
        self, k: int, rows: slice, loss: Float[Tensor, ""], states: Float[Tensor, "R _"]
    ) -> None:
        state_gradients = self.state_gradients[k]
        assert state_gradients is not None
        indices = self._used_parameters[k]
        inputs = [states, *(self.parameters[i] for i in indices)]
        state_gradients[rows], *new = torch.autograd.grad(loss, inputs, allow_unused=True)
        used: list[int] = []
        for i, gradient in zip(indices, new, strict=True):
            if gradient is not None:
                used.append(i)
                previous = self.parameter_gradients[i]
                self.parameter_gradients[i] = (
                    gradient if previous is None else previous.add_(gradient)
                )
        self._used_parameters[k] = used
