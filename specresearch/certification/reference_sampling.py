"""Reference implementation of the sampling parameters: one distribution at a time, by definition.

It shares no code with the engine's sampling, which it is used to test.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from specresearch.sampling import SamplingParams


def penalized(
    logits: Float[np.ndarray, " V"],
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: SamplingParams,
) -> Float[np.ndarray, " V"]:
    """Return the logits after repetition, frequency and presence penalties."""
    logits = logits.copy()
    for token in range(len(logits)):
        if token in prompt or token in output:
            if logits[token] < 0:
                logits[token] *= sampling.repetition_penalty
            else:
                logits[token] /= sampling.repetition_penalty
        logits[token] -= sampling.frequency_penalty * output.count(token)
        logits[token] -= sampling.presence_penalty * (token in output)
    return logits


def next_token_probs(
    logits: Float[np.ndarray, " V"],
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: SamplingParams,
) -> Float[np.ndarray, " V"]:
    """Apply penalties, temperature, top-k, top-p and min-p, in this order.

    Args:
        sampling: its temperature must be above 0.
    """
    probs = np.exp(penalized(logits, prompt, output, sampling) / sampling.temperature)
    likeliest_first = sorted(range(len(probs)), key=lambda token: -probs[token])
    if sampling.top_k:
        probs[likeliest_first[sampling.top_k :]] = 0
    probs /= probs.sum()
    mass = 0.0
    for token in likeliest_first:
        prob = probs[token]
        if mass >= sampling.top_p:
            probs[token] = 0
        mass += prob
    probs /= probs.sum()
    probs[probs < sampling.min_p * probs.max()] = 0
    return probs / probs.sum()
