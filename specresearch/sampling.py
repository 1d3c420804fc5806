"""The one function that turns logits into the distribution that a request samples from, and its draws.

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

from specresearch.proposal import upload
from specresearch.sampling_params import LARGEST_SEED, SamplingParams

DRAFT_STREAM, ACCEPT_STREAM = 0, 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class SamplingBatch:
    """The parameters of the rows of one step, and their randomness.

    seeds: of each row's draws, from 0 to 2**64 - 1.
    positions: number of tokens each row has generated so far. Draws depend on (seed, position, stream) only, hence not on
        the other rows, nor on how many steps it took to get here.
    prompt_counts, output_counts: occurrences of each token, kept only when a row has a penalty.
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
        return all(p.is_greedy for p in self.params)

    @cached_property
    def has_penalty(self) -> bool:
        return any(p.has_penalty for p in self.params)

    def column(self, name: str) -> Float[Tensor, "B 1 1"]:
        """One parameter of every row."""
        if name not in self._columns:
            values = [float(getattr(p, name)) for p in self.params]
            self._columns[name] = upload(values, self.device)[:, None, None]
        return self._columns[name]

    def uniforms(self, stream: int, num: int) -> Float[Tensor, "B num"]:
        """`num` draws from [0, 1) for each row, in double precision; the first ones do not depend on `num`."""
        seeds = np.array(self.seeds, dtype=np.uint64)
        own = _mix(
            _mix(seeds)
            + np.array(self.positions, dtype=np.uint64) * np.uint64(2)
            + np.uint64(stream)
        )
        draws = _mix(_mix(own)[:, None] + np.arange(num, dtype=np.uint64) * _GAMMA)
        return upload((draws >> np.uint64(11)) * 2.0**-53, self.device)


def derive_seed(*parts: int) -> int:
    """A seed from whole numbers in order, e.g. (seed of an engine, number of a request): other numbers, unrelated draws."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = _mix(state ^ _mix(np.array([part & LARGEST_SEED], dtype=np.uint64)))
    return int(state[0])


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A step of splitmix64 (Steele et al. 2014): neighbouring inputs give unrelated outputs. Overflow is meant."""
    value = value + _GAMMA
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def at_least_float32(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return logits if logits.dtype == torch.float64 else logits.float()


def penalize(
    logits: Float[Tensor, "B N V"],
    sampling: SamplingBatch,
    path_tokens: Int[Tensor, "B M"] | None = None,
    on_path: Bool[Tensor, "#B N M"] | None = None,
) -> Float[Tensor, "B N V"]:
    """Logits after repetition, presence and frequency penalties, which are computed in float32 or better.

    path_tokens, on_path: drafts not committed yet, and which of them precede each row of logits; with them the penalties
        under speculation are exactly those of plain decoding.
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
    """The distribution each row samples from, in float32 (float64 for float64 logits). Greedy rows are one-hot."""
    logits = penalize(at_least_float32(logits), sampling, path_tokens, on_path)
    params = sampling.params
    temperature = sampling.column("temperature").to(logits.dtype)
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)
    if any(p.top_k for p in params) or any(p.top_p < 1 for p in params):
        scaled = _truncate(scaled, sampling)
    probs = scaled.softmax(-1)
    if any(p.min_p for p in params):
        floor = sampling.column("min_p").to(probs.dtype) * probs.amax(-1, keepdim=True)
        probs = probs.where(probs >= floor, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if any(p.is_greedy for p in params):
        one_hot = torch.zeros_like(probs).scatter_(2, argmax(logits)[..., None], 1.0)
        probs = torch.where(temperature > 0, probs, one_hot)
    return probs


def _truncate(logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Float[Tensor, "B N V"]:
    """-inf outside the top-k tokens, and outside the fewest tokens whose probability reaches top-p."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = sampling.column("top_k")
    dropped = (rank >= top_k) & (top_k > 0)
    ordered = ordered.masked_fill(dropped, float("-inf"))
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    top_p = sampling.column("top_p")
    dropped = dropped | ((before >= top_p) & (top_p < 1) & (rank > 0))
    return logits.masked_fill(torch.zeros_like(dropped).scatter_(2, index, dropped), float("-inf"))


def argmax(logits: Float[Tensor, "*rows V"]) -> Int[Tensor, "*rows"]:
    """The first of the largest logits in each row. On the CPU through numpy, whose argmax is vectorised (10 times faster)."""
    if logits.device.type == "cpu" and logits.dtype.itemsize >= 4:
        return torch.from_numpy(np.asarray(logits.numpy().argmax(-1)))
    return logits.argmax(-1)


def draw(weights: Float[Tensor, "B V"], uniforms: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """One index per row with probability proportional to its weight; an index of weight zero is never drawn.

    Where weights are not finite the index means nothing, but is one of the row's.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    point = torch.minimum(
        uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp(max=weights.shape[1] - 1)
