"""Turns logits into the distribution that a request samples from, and draws from it.

Target and draft go through the same function, so that p and q differ only by their logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from specresearch.sampling_params import LARGEST_SEED, SamplingParams
from specresearch.topology import upload

DRAFT_STREAM, ACCEPT_STREAM = 0, 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class SamplingBatch:
    """The sampling parameters of the rows of one step, and their random numbers.

    Attributes:
        seeds: The seed of each row's draws, from 0 to 2**64 - 1.
        positions: Tokens that each row has generated so far. Draws depend on (seed, position,
            stream) only, so neither other rows nor the number of steps so far change them.
        prompt_counts: Occurrences of each token in the prompt; None if no row has a penalty.
        output_counts: Occurrences of each token in the output; None if no row has a penalty.
    """

    params: Sequence[SamplingParams]
    seeds: Sequence[int]
    positions: Sequence[int]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    prompt_counts: Int[Tensor, "B V"] | None = None
    output_counts: Int[Tensor, "B V"] | None = None
    _columns: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def all_greedy(self) -> bool:
        """Whether every row has temperature 0."""
        return all(params.is_greedy for params in self.params)

    @cached_property
    def has_penalty(self) -> bool:
        """Whether some row has a repetition, presence or frequency penalty."""
        return any(params.has_penalty for params in self.params)

    def column(self, name: str) -> Float[Tensor, "B 1 1"]:
        """Return one parameter of every row."""
        if name not in self._columns:
            values = [float(getattr(params, name)) for params in self.params]
            self._columns[name] = upload(values, self.device)[:, None, None]
        return self._columns[name]

    def uniforms(self, stream: int, num: int) -> Float[Tensor, "B num"]:
        """Return draws from [0, 1) in double precision; the first ones do not depend on `num`.

        Args:
            stream: `DRAFT_STREAM` or `ACCEPT_STREAM`, which are independent.
        """
        seeds = _mix(np.array(self.seeds, dtype=np.uint64))
        positions = np.array(self.positions, dtype=np.uint64)
        row_states = _mix(_mix(seeds + positions * np.uint64(2) + np.uint64(stream)))
        draws = _mix(row_states[:, None] + np.arange(num, dtype=np.uint64) * _GAMMA)
        return upload((draws >> np.uint64(11)) * 2.0**-53, self.device)


def derive_seed(*parts: int) -> int:
    """Derive a seed from whole numbers in order, such as an engine's seed and a request's number.

    Any other numbers give unrelated draws.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = _mix(state ^ _mix(np.array([part & LARGEST_SEED], dtype=np.uint64)))
    return int(state[0])


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a step of splitmix64 (Steele et al. 2014): close inputs give unrelated outputs.

    The arithmetic is meant to overflow.
    """
    value = value + _GAMMA
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def at_least_float32(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the logits in float32, or unchanged if they are float64."""
    return logits if logits.dtype == torch.float64 else logits.float()


def penalize(
    logits: Float[Tensor, "B N V"],
    sampling: SamplingBatch,
    path_tokens: Int[Tensor, "B M"] | None = None,
    on_path: Bool[Tensor, "#B N M"] | None = None,
) -> Float[Tensor, "B N V"]:
    """Apply repetition, presence and frequency penalties, in float32 or better.

    With the last two arguments, penalties under speculation equal those of plain decoding.

    Args:
        path_tokens: Drafts that are not committed yet.
        on_path: Which of these drafts precede each row of logits.
    """
    if not sampling.has_penalty:
        return logits
    logits = at_least_float32(logits)
    assert sampling.prompt_counts is not None
    assert sampling.output_counts is not None
    counts = sampling.output_counts[:, None].to(logits.dtype).expand_as(logits)
    if path_tokens is not None and on_path is not None:
        rows, num, _ = logits.shape
        index = path_tokens[:, None].expand(rows, num, -1)
        counts = counts.scatter_add(2, index, on_path.to(counts.dtype).expand(rows, num, -1))
    seen = (counts > 0) | (sampling.prompt_counts > 0)[:, None]
    repetition = sampling.column("repetition_penalty").to(logits.dtype)
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, scaled, logits)
    logits = logits - sampling.column("frequency_penalty").to(logits.dtype) * counts
    return logits - sampling.column("presence_penalty").to(logits.dtype) * (counts > 0)


def logits_to_probs(
    logits: Float[Tensor, "B N V"],
    sampling: SamplingBatch,
    path_tokens: Int[Tensor, "B M"] | None = None,
    on_path: Bool[Tensor, "#B N M"] | None = None,
) -> Float[Tensor, "B N V"]:
    """Return the distribution that each row samples from; greedy rows are one-hot.

    Args:
        path_tokens: As in `penalize`.
        on_path: As in `penalize`.

    Returns:
        Probabilities in float32, or in float64 for float64 logits.
    """
    logits = penalize(at_least_float32(logits), sampling, path_tokens, on_path)
    temperature = sampling.column("temperature").to(logits.dtype)
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)
    if any(params.top_k or params.top_p < 1 for params in sampling.params):
        scaled = _truncate(scaled, sampling)
    probs = scaled.softmax(-1)
    if any(params.min_p for params in sampling.params):
        floor = sampling.column("min_p").to(probs.dtype) * probs.amax(-1, keepdim=True)
        probs = probs.where(probs >= floor, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if any(params.is_greedy for params in sampling.params):
        one_hot = torch.zeros_like(probs).scatter_(2, argmax(logits)[..., None], 1.0)
        probs = torch.where(temperature > 0, probs, one_hot)
    return probs


def _truncate(logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Float[Tensor, "B N V"]:
    """Mask all but the top-k tokens and the fewest tokens whose probability reaches top-p."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = sampling.column("top_k")
    dropped = (rank >= top_k) & (top_k > 0)
    ordered = ordered.masked_fill(dropped, float("-inf"))
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    top_p = sampling.column("top_p")
    dropped = dropped | ((before >= top_p) & (top_p < 1) & (rank > 0))
    mask = torch.zeros_like(dropped).scatter_(2, index, dropped)
    return logits.masked_fill(mask, float("-inf"))


def argmax(logits: Float[Tensor, "*rows V"]) -> Int[Tensor, "*rows"]:
    """Return the index of the largest logit in each row, the first of equals."""
    if logits.device.type == "cpu" and logits.dtype.itemsize >= 4:
        # numpy's argmax is vectorised, and 10 times as fast as torch's
        return torch.from_numpy(np.asarray(logits.numpy().argmax(-1)))
    return logits.argmax(-1)


def draw(weights: Float[Tensor, "B V"], uniforms: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Draw one index per row with probability proportional to its weight.

    An index of weight zero is never drawn. If weights are not finite, the index is arbitrary but
    valid.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(uniforms[:, None] * total, below_total)
    index = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return index.clamp(max=weights.shape[1] - 1)
