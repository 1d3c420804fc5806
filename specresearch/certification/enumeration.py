"""Enumerate all outputs of a toy target with their exact probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from specresearch.certification.reference_sampling import next_token_probs
from specresearch.certification.targets import Contexts, Toy
from specresearch.sampling import SamplingParams

# the engine's passes may round this many times as much as passes over whole prefixes do
ROUNDING_MARGIN = 2.0


@dataclass(frozen=True)
class OutputDistribution:
    """All possible outputs of one prompt under one setting.

    Attributes:
        probs: probability of each output in exact arithmetic.
        rounding: bound on how far rounding in the target's passes may move the distribution, as
            the square root of the chi-square divergence.
    """

    outputs: tuple[tuple[int, ...], ...]
    probs: Float[np.ndarray, " K"]
    rounding: float = 0.0

    @cached_property
    def cell_of(self) -> dict[tuple[int, ...], int]:
        """Index of each output in `outputs`."""
        return {output: cell for cell, output in enumerate(self.outputs)}


def enumerate_outputs(
    toy: Toy, prompt: tuple[int, ...], sampling: SamplingParams
) -> OutputDistribution:
    """Return all outputs of up to `max_new_tokens` tokens that have a probability above 0.

    A target in float32 or bfloat16 gets the distribution of its rounded weights in float64;
    `rounding` bounds what its own passes may do to it.

    Raises:
        ValueError: the setting truncates the distribution, and rounding may change which tokens
            are cut off.
    """
    exact = _probabilities(toy.logits, prompt, sampling)
    outputs, probs = tuple(exact), np.array(list(exact.values()))
    if toy.is_exact:
        return OutputDistribution(outputs, probs)
    truncates = (sampling.top_k, sampling.top_p, sampling.min_p) != (0, 1.0, 0.0)
    is_16_bit = toy.torch_dtype.itemsize < 4
    rounded = _probabilities(toy.rounded_logits, prompt, sampling)
    if rounded.keys() != exact.keys() or (truncates and is_16_bit):
        raise ValueError(
            "top-k, top-p and min-p cut off tokens at a boundary that rounding to "
            f"{toy.dtype} may cross; try settings without them in that precision"
        )
    deviation = np.array([rounded[output] for output in outputs]) - probs
    divergence = float((deviation**2 / probs).sum() ** 0.5)
    return OutputDistribution(outputs, probs, ROUNDING_MARGIN * divergence)


def _probabilities(
    logits_after: Callable[[Contexts], Float[torch.Tensor, "C V"]],
    prompt: tuple[int, ...],
    sampling: SamplingParams,
) -> dict[tuple[int, ...], float]:
    """Return the probability of each output. Stop tokens end an output early."""
    unfinished: dict[tuple[int, ...], float] = {(): 1.0}
    finished: dict[tuple[int, ...], float] = {}
    for _ in range(sampling.max_new_tokens):
        logits = logits_after([(*prompt, *output) for output in unfinished]).numpy()
        longer: dict[tuple[int, ...], float] = {}
        for (output, mass), row in zip(unfinished.items(), logits, strict=True):
            for token, p in enumerate(next_token_probs(row, prompt, output, sampling)):
                if p > 0:
                    is_stop = token in sampling.stop_token_ids
                    (finished if is_stop else longer)[*output, token] = mass * float(p)
        unfinished = longer
    return finished | unfinished
