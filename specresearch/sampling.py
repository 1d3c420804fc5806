"""Turns logits into the distribution that a request samples from, and draws from it.

Target and draft go through the same function, so that p and q differ only by their logits.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.return_types import topk as topk_values

from specresearch.sampling_params import LARGEST_SEED, SamplingParams
from specresearch.topology import upload

DRAFT_STREAM, ACCEPT_STREAM = 0, 1
LARGEST_VOCABULARY = 1 << 24  # more than any model has; float32 holds every number up to it
_DIGIT_BITS = 11
_LEAST_BLOCK, _MOST_BLOCK, _LEAST_BLOCKS = 64, 512, 16  # of `topk`; blocks are for each of the k
SORTED_VOCABULARY = 1 << _DIGIT_BITS  # up to here, sorting costs less than histograms
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


# What rows differ by, brought to the device together.
_COLUMNS: dict[str, Callable[[SamplingParams], float]] = {
    "divisor": lambda params: params.temperature or 1.0,
    "is_sampled": lambda params: not params.is_greedy,
    "top_k": lambda params: params.top_k or LARGEST_VOCABULARY,
    "top_p": attrgetter("top_p"),
    "min_p": attrgetter("min_p"),
    "repetition_penalty": attrgetter("repetition_penalty"),
    "presence_penalty": attrgetter("presence_penalty"),
    "frequency_penalty": attrgetter("frequency_penalty"),
}
_NAMES = {name: index for index, name in enumerate(_COLUMNS)}


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

    @cached_property
    def all_greedy(self) -> bool:
        """Whether every row has temperature 0."""
        return all(params.is_greedy for params in self.params)

    @cached_property
    def has_penalty(self) -> bool:
        """Whether some row has a logit bias, or a repetition, presence or frequency penalty."""
        return any(params.has_penalty for params in self.params)

    @cached_property
    def columns(self) -> Float[Tensor, "num B 1 1"]:
        """The settings of every row on the device, in the order of `_COLUMNS`."""
        values = upload(self.host_columns(), self.device, torch.float32)
        return values.T[:, :, None, None]

    def host_columns(self) -> list[list[float]]:
        """Return the settings of every row, by row."""
        return [[float(read(params)) for read in _COLUMNS.values()] for params in self.params]

    def column(self, name: str) -> Float[Tensor, "B 1 1"]:
        """Return one setting of every row, by its name in `_COLUMNS`."""
        return self.columns[_NAMES[name]]

    @cached_property
    def bias(self) -> Float[Tensor, "B V"] | None:
        """What is added to the logits of every row; None if no row has a logit bias."""
        if not any(params.logit_bias for params in self.params):
            return None
        assert self.output_counts is not None
        rows, tokens, values = [], [], []
        for row, params in enumerate(self.params):
            for token, value in params.token_biases:
                rows.append(row)
                tokens.append(token)
                values.append(value)
        bias = torch.zeros(self.output_counts.shape, device=self.device)
        index = upload(rows, self.device), upload(tokens, self.device)
        return bias.index_put_(index, upload(values, self.device))

    @property
    def kind(self) -> Hashable:
        """What decides, beside numbers on the device, which operations sampling runs."""
        nuclei = [params.top_k for params in self.params if params.top_p < 1]
        return (
            any(params.is_greedy for params in self.params),
            any(params.temperature not in (0, 1) for params in self.params),
            any(params.min_p for params in self.params),
            max(params.top_k for params in self.params),
            bool(nuclei),
            all(nuclei),
        )

    def given(
        self, columns: Float[Tensor, "num B 1 1"], uniforms: Float[Tensor, "B _"]
    ) -> "SamplingBatch":
        """Return the same sampling with its numbers in the buffers of a graph, without penalties.

        Args:
            uniforms: The draws of the one stream that will be asked for.
        """
        batch = _GivenSampling(self.params, self.seeds, self.positions, self.device)
        batch.__dict__["columns"] = columns
        batch.drawn = uniforms
        return batch

    def uniforms(self, stream: int, num: int) -> Float[Tensor, "B num"]:
        """Return draws from [0, 1) in double precision; the first ones do not depend on `num`.

        Args:
            stream: `DRAFT_STREAM` or `ACCEPT_STREAM`, which are independent.
        """
        return upload(self.host_uniforms(stream, num), self.device)

    def host_uniforms(self, stream: int, num: int) -> Float[np.ndarray, "B num"]:
        """Return the draws of `uniforms` on the host."""
        seeds = _mix(np.array(self.seeds, dtype=np.uint64))
        positions = np.array(self.positions, dtype=np.uint64)
        row_states = _mix(_mix(seeds + positions * np.uint64(2) + np.uint64(stream)))
        draws = _mix(row_states[:, None] + np.arange(num, dtype=np.uint64) * _GAMMA)
        return (draws >> np.uint64(11)) * 2.0**-53


class _GivenSampling(SamplingBatch):
    """Takes its draws as given."""

    drawn: Float[Tensor, "B _"]

    def uniforms(self, stream: int, num: int) -> Float[Tensor, "B num"]:
        return self.drawn[:, :num]


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
    """Apply logit bias and repetition, presence and frequency penalties, in float32 or better.

    With the last two arguments, penalties under speculation equal those of plain decoding.

    Args:
        path_tokens: Drafts that are not committed yet.
        on_path: Which of these drafts precede each row of logits.
    """
    if not sampling.has_penalty:
        return logits
    logits = at_least_float32(logits)
    if sampling.bias is not None:
        logits = logits + sampling.bias[:, None].to(logits.dtype)
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
    divided = logits
    if any(params.temperature not in (0, 1) for params in sampling.params):
        divided = logits / sampling.column("divisor").to(logits.dtype)
    probs = _truncate(divided, sampling).softmax(-1)
    if any(params.min_p for params in sampling.params):
        floor = sampling.column("min_p").to(probs.dtype) * probs.amax(-1, keepdim=True)
        probs = probs.where(probs >= floor, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if any(params.is_greedy for params in sampling.params):
        one_hot = torch.zeros_like(probs).scatter_(2, argmax(logits)[..., None], 1.0)
        probs = torch.where(sampling.column("is_sampled") > 0, probs, one_hot)
    return probs


def _truncate(logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Float[Tensor, "B N V"]:
    """Mask all but the top-k tokens and the fewest of them whose probability reaches top-p.

    Of equal tokens the first ones stay. A large vocabulary is never sorted.
    """
    nuclei = [params.top_k for params in sampling.params if params.top_p < 1]
    largest_k = min(max(params.top_k for params in sampling.params), logits.shape[-1])
    if largest_k:
        top_k = sampling.column("top_k").long()
        values = topk(logits, largest_k).values
        last = values.gather(2, top_k.clamp(max=largest_k).expand(*logits.shape[:2], 1) - 1)
        last = last.masked_fill(top_k > largest_k, float("-inf"))
        num_larger = (values > last).sum(-1, keepdim=True)
        logits = _keep_largest(logits, logits, last, top_k - num_larger)
    if nuclei:
        # float32 may have rounded it to 0, at which nothing would be left
        top_p = sampling.column("top_p").double().clamp(min=torch.finfo(torch.float32).tiny)
        candidates = largest_k if all(nuclei) else logits.shape[-1]
        if all(nuclei) or candidates <= SORTED_VOCABULARY:
            values = logits.topk(candidates).values
            probs = values.softmax(-1, dtype=torch.float64)
            num_kept = (probs.cumsum(-1) - probs < top_p).sum(-1, keepdim=True)
            last = values.gather(2, num_kept - 1)
            num_equal = num_kept - (values > last).sum(-1, keepdim=True)
            values = logits
        else:
            values = logits.softmax(-1)
            last, num_equal = _nucleus(values, top_p)
        logits = _keep_largest(
            logits, values, last.masked_fill(top_p >= 1, float("-inf")), num_equal
        )
    return logits


def _keep_largest(
    logits: Float[Tensor, "B N V"],
    values: Float[Tensor, "B N V"],
    last: Float[Tensor, "B N 1"],
    num_equal: Int[Tensor, "#B #N 1"],
) -> Float[Tensor, "B N V"]:
    """Mask the logits of all tokens but those above `last` and the first few that equal it."""
    is_equal = values == last
    is_kept = (values > last) | (is_equal & (is_equal.cumsum(-1) <= num_equal))
    return logits.masked_fill(~is_kept, float("-inf"))


def _nucleus(
    probs: Float[Tensor, "B N V"], top_p: Float[Tensor, "B 1 1"]
) -> tuple[Float[Tensor, "B N 1"], Int[Tensor, "B N 1"]]:
    """Find the least probability in the nucleus, and how many tokens that have it belong there.

    The bits of a probability are a whole number in the same order. Its digits are found one after
    another, each by a histogram of the probability that the tokens in question hold.
    """
    keys = probs.view(torch.int64 if probs.dtype == torch.float64 else torch.int32).long()
    mass = probs.double()
    above = torch.zeros_like(mass[..., :1])  # probability of the tokens known to be larger
    prefix = torch.zeros_like(keys[..., :1])
    num_digits = -(-probs.dtype.itemsize * 8 // _DIGIT_BITS)
    for shift in reversed(range(0, num_digits * _DIGIT_BITS, _DIGIT_BITS)):
        digits = keys >> shift
        is_candidate = digits >> _DIGIT_BITS == prefix
        digits = digits & ((1 << _DIGIT_BITS) - 1)
        held = mass.new_zeros((*mass.shape[:-1], 1 << _DIGIT_BITS))
        held.scatter_add_(2, digits, mass * is_candidate)
        before = above + held.flip(2).cumsum(2).flip(2) - held
        digit = (before >= top_p).sum(-1, keepdim=True).clamp(max=held.shape[2] - 1)
        above = before.gather(2, digit)
        prefix = (prefix << _DIGIT_BITS) | digit
    last = prefix.to(keys.dtype if probs.dtype == torch.float64 else torch.int32)
    last = last.view(probs.dtype)
    num_equal = ((top_p - above) / last).ceil().clamp(1, LARGEST_VOCABULARY)
    return last, num_equal.long()


def argmax(logits: Float[Tensor, "*rows V"]) -> Int[Tensor, "*rows"]:
    """Return the index of the largest logit in each row, the first of equals."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    # numpy's argmax is vectorised, and 10 times as fast as torch's; it has no bfloat16
    if logits.dtype.itemsize == 2:
        # The bits of positive numbers are whole numbers in the same order, above all others.
        bits = logits.view(torch.int16).numpy()
        best = np.asarray(bits.argmax(-1))
        if (np.take_along_axis(bits, best[..., None], -1) > 0).all():
            return torch.from_numpy(best)
        logits = logits.float()
    return torch.from_numpy(np.asarray(logits.numpy().argmax(-1)))


def topk(logits: Float[Tensor, "*rows V"], k: int) -> topk_values:
    """Return the k largest logits of each row, the largest first, and their indices.

    torch's own goes through a large vocabulary on a CPU token by token. Here only those blocks of
    it are searched that have the largest maxima, which is where the k largest are.
    """
    vocab_size = logits.shape[-1]
    size = min(vocab_size & -vocab_size, _MOST_BLOCK)  # the largest power of two that divides it
    num_blocks = vocab_size // size
    if logits.device.type != "cpu" or size < _LEAST_BLOCK or num_blocks < _LEAST_BLOCKS * k:
        return logits.topk(k)
    blocks = logits.unflatten(-1, (num_blocks, size))
    chosen = blocks.amax(-1).topk(k, sorted=False).indices
    candidates = blocks.gather(-2, chosen[..., None].expand(*chosen.shape, size)).flatten(-2)
    best = candidates.topk(k)
    indices = chosen.gather(-1, best.indices // size) * size + best.indices % size
    return topk_values((best.values, indices))
