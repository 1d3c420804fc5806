"""Losses of many rows whose logits never exist at once: gradients are taken chunk by chunk, on the way forward.

So every readout runs once, and the target's serves all drafting steps. Checkpoints would run both a second time in backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from specresearch.sampling import argmax
from specresearch.training.objectives import CHUNK_ROWS, Divergence, Objective, Readout, places_of


@dataclass(frozen=True)
class Guess:
    """What one drafting step says of each row. valid: the rows that it says anything of. weight: of its loss.

    readout: logits over the target's vocabulary, or over `target_ids`. samples: whether decoding draws the draft, or takes the
    likeliest token.
    """

    states: Float[Tensor, "R _"]
    readout: Readout
    valid: Bool[Tensor, " R"]
    weight: float = 1.0
    target_ids: Int[Tensor, " D"] | None = None
    samples: bool = True


def chunked_losses(
    objective: Objective,
    target_states: Float[Tensor, "R _"],
    target_readout: Readout,
    labels: Int[Tensor, " R"],
    guesses: Sequence[Guess],
    parameters: Sequence[nn.Parameter] = (),
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[Float[Tensor, ""], Float[Tensor, "K 4"]]:
    """The weighted sum of the objective over the rows of all K guesses; and of each guess, summed over its rows: the objective,
    expected acceptance, how many likeliest tokens agree with the target's, and how many rows.

    Expected acceptance is sum min(p, q) over the whole vocabulary, or p of the likeliest draft where drafts are not sampled.

    labels: the text's tokens. parameters: what readouts may train. Gradients flow into the guesses'
    states and `parameters`, once. Memory: about a dozen float32 arrays of chunk_rows x V, and those
    gradients.

    Over a reduced vocabulary p is renormalised for the objective, and a row whose likeliest token
    of the target lies outside loses nothing, as in the reference implementation of EAGLE-3 (arXiv
    2503.01840). Acceptance and agreement count every row.
    """
    chunks = _Chunks(objective, guesses, parameters, torch.is_grad_enabled())
    rows = zip(target_states.split(chunk_rows), labels.split(chunk_rows), strict=True)

    def run() -> Float[Tensor, "K 4"]:
        for number, (states, tokens) in enumerate(rows):
            chunks.add(_TargetRows(objective, target_readout(states), tokens), number * chunk_rows)
        return chunks.sums

    return _ChunkedLosses.apply(run, chunks, *(guess.states for guess in guesses), *parameters)


class _ChunkedLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Any, chunks: "_Chunks", *inputs: Tensor) -> tuple[Tensor, Tensor]:
        sums = run()
        ctx.gradients = [*chunks.of_states, *chunks.of_parameters]
        ctx.mark_non_differentiable(sums)
        weights = sums.new_tensor([guess.weight for guess in chunks.guesses])
        return (weights * sums[:, 0]).sum(), sums

    @staticmethod
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Any, ...]:
        taken, ctx.gradients = ctx.gradients, None
        return None, None, *(None if part is None else part.mul_(of_outputs[0]) for part in taken)


class _TargetRows:
    """What the target says of a chunk of rows, in the forms that guesses are compared with."""

    def __init__(
        self, objective: Objective, logits: Float[Tensor, "R V"], labels: Int[Tensor, " R"]
    ) -> None:
        self.objective, self.logits, self.labels = objective, logits, labels
        self.log_p, self.likeliest = objective.log_probs(logits), argmax(logits)
        self._reduced: dict[int, tuple[Tensor, Tensor]] = {}

    def loss(
        self, guess: Guess, logits: Float[Tensor, "R D"], log_q: Float[Tensor, "R D"]
    ) -> Float[Tensor, " R"]:
        ids = guess.target_ids
        if not isinstance(self.objective, Divergence):
            draftable = self.logits if ids is None else self.logits[:, ids]
            return self.objective(
                draftable, logits, self.labels if ids is None else places_of(self.labels, ids)
            )
        if ids is None:
            return self.objective.between(self.log_p, log_q)
        if id(ids) not in self._reduced:
            is_outside = places_of(self.likeliest, ids) < 0
            self._reduced[id(ids)] = self.objective.log_probs(self.logits[:, ids]), is_outside
        log_p, is_outside = self._reduced[id(ids)]
        return self.objective.between(log_p, log_q).masked_fill(is_outside, 0)

    def accepted(self, guess: Guess, log_q: Float[Tensor, "R D"]) -> Float[Tensor, " R"]:
        log_p = self.log_p if guess.target_ids is None else self.log_p[:, guess.target_ids]
        if guess.samples:
            return torch.minimum(log_p, log_q).exp().sum(-1)
        return log_p.gather(-1, argmax(log_q)[:, None])[:, 0].exp()

    def agreeing(self, guess: Guess, logits: Float[Tensor, "R D"]) -> Bool[Tensor, " R"]:
        likeliest = argmax(logits)
        return self.likeliest == (
            likeliest if guess.target_ids is None else guess.target_ids[likeliest]
        )


class _Chunks:
    """Sums over the chunks added so far, and gradients of the weighted loss in states and parameters; None: there are none."""

    def __init__(
        self,
        objective: Objective,
        guesses: Sequence[Guess],
        parameters: Sequence[nn.Parameter],
        differentiates: bool,
    ) -> None:
        self.objective, self.guesses, self.parameters = objective, guesses, parameters
        self.differentiates = differentiates
        self.sums = torch.zeros(
            (len(guesses), 4), dtype=torch.float64, device=guesses[0].valid.device
        )
        self.of_states = [
            torch.zeros_like(guess.states) if differentiates else None for guess in guesses
        ]
        self.of_parameters: list[Tensor | None] = [None for _ in parameters]
        self._trained: list[Sequence[int]] = [range(len(parameters)) for _ in guesses]

    def add(self, target: _TargetRows, begin: int) -> None:
        """The chunk of rows from `begin` on."""
        rows = slice(begin, begin + len(target.labels))
        self.sums += torch.stack([self._compare(k, target, rows) for k in range(len(self.guesses))])

    def _compare(self, k: int, target: _TargetRows, rows: slice) -> Float[Tensor, "4"]:
        guess = self.guesses[k]
        valid = guess.valid[rows]
        states = guess.states.detach()[rows].requires_grad_(self.differentiates)
        with torch.set_grad_enabled(self.differentiates):
            logits = guess.readout(states)
            log_q = self.objective.log_probs(logits)
            loss = target.loss(guess, logits, log_q).masked_fill(~valid, 0).sum()
            if self.differentiates:
                self._take_gradients(k, rows, loss * guess.weight, states)
        accepted = target.accepted(guess, log_q.detach()).masked_fill(~valid, 0).sum()
        agreeing = (target.agreeing(guess, logits.detach()) & valid).sum()
        return torch.stack(
            [part.double() for part in (loss.detach(), accepted, agreeing, valid.sum())]
        )

    def _take_gradients(
        self, k: int, rows: slice, loss: Float[Tensor, ""], states: Float[Tensor, "R _"]
    ) -> None:
        of_states, places = self.of_states[k], self._trained[k]
        assert of_states is not None
        trained = [self.parameters[i] for i in places]
        of_states[rows], *new = torch.autograd.grad(loss, [states, *trained], allow_unused=True)
        found = {i: part for i, part in zip(places, new, strict=True) if part is not None}
        for i, part in found.items():
            old = self.of_parameters[i]
            self.of_parameters[i] = part if old is None else old.add_(part)
        self._trained[k] = list(found)
