"""A target small enough to write down: everything it can answer, each answer with its exact probability.

A target in float32 or bfloat16 has the distribution that its rounded weights have in float64; how far the rounding of its own
passes moves outputs is measured beside it.

Nothing here passes through the engine or its sampling code. The model is the library's own, called on whole prefixes, and
sampling settings are applied to one distribution at a time, as their definitions read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from specresearch.models import CausalLM
from specresearch.sampling import SamplingParams

MAX_LEN, LONGEST_PROMPT = 64, 12
TARGET_SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
ROUNDING_MARGIN = (
    2.0  # the engine's passes may round this many times as much as passes over whole prefixes do
)
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
Contexts: TypeAlias = Sequence[tuple[int, ...]]
DRAFT_SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


class WholePasses:
    """What a model says after each context, from a plain forward pass over all of it; contexts are remembered."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._logits = torch.empty((0, model.config.vocab_size), dtype=torch.float64)
        self._row_of: dict[tuple[int, ...], int] = {}

    @torch.inference_mode()
    def logits(self, contexts: Contexts) -> Float[torch.Tensor, "C V"]:
        """Contexts share a pass, padded on the right, where a causal model does not look."""
        new = list(dict.fromkeys(context for context in contexts if context not in self._row_of))
        if new:
            self._row_of |= {context: len(self._row_of) + i for i, context in enumerate(new)}
            padded = pad_sequence([torch.tensor(context) for context in new], batch_first=True)
            last = torch.tensor([len(context) - 1 for context in new])
            said = self._model(padded, use_cache=False).logits[torch.arange(len(new)), last]
            self._logits = torch.cat([self._logits, said.double()])
        return self._logits[[self._row_of[context] for context in contexts]]


class Toy:
    """A random Llama over a vocabulary of a few tokens, and what it says after any prefix.

    sharpness: of its distributions; the standard deviation of every matrix product's output. dtype: of the target that the engine
    runs, and of its weights; float64, float32, float16 or bfloat16.
    """

    def __init__(
        self, vocab_size: int = 5, seed: int = 0, sharpness: float = 1.0, dtype: str = "float64"
    ) -> None:
        if vocab_size < 3:
            raise ValueError(
                f"toy.vocab_size={vocab_size} must be at least 3, or drafts can hardly be wrong"
            )
        if dtype not in DTYPES:
            raise ValueError(f"toy.dtype={dtype!r} must be one of {', '.join(DTYPES)}")
        self.vocab_size, self.seed, self.sharpness, self.dtype = (
            vocab_size,
            seed,
            sharpness,
            DTYPES[dtype],
        )
        self.settings = {
            "vocab_size": vocab_size,
            "seed": seed,
            "sharpness": sharpness,
            "dtype": dtype,
        }
        self._exact = WholePasses(self._build(TARGET_SHAPE, seed).double())
        self._rounded = WholePasses(self._build(TARGET_SHAPE, seed))

    @property
    def is_exact(self) -> bool:
        """True if the target runs in float64, where rounding is too small to show."""
        return self.dtype == torch.float64

    def target(self) -> CausalLM:
        """The target as the engine runs it: a copy, since its attention is taken over."""
        return CausalLM(self._build(TARGET_SHAPE, self.seed), max_len=MAX_LEN, name="toy")

    def draft(self, seed: int = 1) -> CausalLM:
        """A smaller model of the same vocabulary, which agrees with the target by chance only."""
        return CausalLM(
            self._build(DRAFT_SHAPE, self.seed + 1000 * seed), max_len=MAX_LEN, name="toy_draft"
        )

    def _build(self, shape: dict[str, Any], seed: int) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            num_key_value_heads=shape["num_attention_heads"] // 2,
            max_position_embeddings=MAX_LEN,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=None,
            **shape,
        )
        model = LlamaForCausalLM(config).double().eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for matrix in (parameter for parameter in model.parameters() if parameter.dim() > 1):
                scale = self.sharpness / matrix.shape[-1] ** 0.5
                matrix.copy_(
                    torch.randn(matrix.shape, generator=generator, dtype=torch.float64) * scale
                )
        for part in (*model.parameters(), *model.buffers()):
            part.data = part.data.to(self.dtype)
        return model

    def logits(self, contexts: Contexts) -> Float[torch.Tensor, "C V"]:
        """Return what the target's weights say after each context in float64."""
        return self._exact.logits(contexts)

    def rounded_logits(self, contexts: Contexts) -> Float[torch.Tensor, "C V"]:
        """Return what a pass over each whole context says in the target's own precision."""
        return self._rounded.logits(contexts)

    def greedy(
        self, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams
    ) -> list[tuple[int, ...]]:
        """The likeliest token after every prefix, `max_new_tokens` times."""
        outputs: list[tuple[int, ...]] = [()] * len(prompts)
        for _ in range(sampling.max_new_tokens):
            logits = self.logits(
                [(*prompt, *output) for prompt, output in zip(prompts, outputs, strict=True)]
            ).numpy()
            rows = zip(logits, prompts, outputs, strict=True)
            outputs = [
                (*output, int(penalized(row, prompt, output, sampling).argmax()))
                for row, prompt, output in rows
            ]
        return outputs


def penalized(
    logits: Float[np.ndarray, " V"],
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: SamplingParams,
) -> Float[np.ndarray, " V"]:
    """Logits after repetition, frequency and presence penalties, token by token."""
    logits = logits.copy()
    for token in range(len(logits)):
        if token in prompt or token in output:
            penalty = sampling.repetition_penalty
            logits[token] = (
                logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
            )
        logits[token] -= sampling.frequency_penalty * output.count(token)
        logits[token] -= sampling.presence_penalty * (token in output)
    return logits


def next_token_probs(
    logits: Float[np.ndarray, " V"],
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: SamplingParams,
) -> Float[np.ndarray, " V"]:
    """Penalties, temperature, top-k, top-p and min-p, in this order, on one distribution; temperature above 0."""
    probs = np.exp(penalized(logits, prompt, output, sampling) / sampling.temperature)
    likeliest_first = sorted(range(len(probs)), key=lambda token: -probs[token])
    if sampling.top_k:
        probs[likeliest_first[sampling.top_k :]] = 0
    probs /= probs.sum()
    mass = 0.0
    for token in likeliest_first:
        own = probs[token]
        if mass >= sampling.top_p:
            probs[token] = 0
        mass += own
    probs /= probs.sum()
    probs[probs < sampling.min_p * probs.max()] = 0
    return probs / probs.sum()


@dataclass(frozen=True)
class Law:
    """Every output that a prompt can get under one setting, and its probability.

    rounding: how far the rounding of the target's passes may move the outputs: the root of the chi-square divergence.
    """

    outputs: tuple[tuple[int, ...], ...]
    probs: Float[np.ndarray, " K"]
    rounding: float = 0.0

    @cached_property
    def cell_of(self) -> dict[tuple[int, ...], int]:
        return {output: cell for cell, output in enumerate(self.outputs)}


def enumerate_outputs(toy: Toy, prompt: tuple[int, ...], sampling: SamplingParams) -> Law:
    """All outputs of up to `max_new_tokens` tokens that have probability above 0; stop tokens end one early.

    Raises:
        ValueError: the setting cuts off tokens, and rounding to 16 bits may cut off others.
    """
    exact = _probabilities(toy.logits, prompt, sampling)
    law = Law(tuple(exact), np.array(list(exact.values())))
    if toy.is_exact:
        return law
    truncates = (sampling.top_k, sampling.top_p, sampling.min_p) != (0, 1.0, 0.0)
    rounded = _probabilities(toy.rounded_logits, prompt, sampling)
    if rounded.keys() != exact.keys() or (truncates and toy.dtype.itemsize < 4):
        raise ValueError(
            f"top-k, top-p and min-p cut off tokens at a boundary that rounding to {toy.settings['dtype']} may cross; try "
            "settings without them in that precision"
        )
    deviation = np.array([rounded[output] for output in law.outputs]) - law.probs
    return replace(law, rounding=ROUNDING_MARGIN * float((deviation**2 / law.probs).sum() ** 0.5))


def _probabilities(
    say: Callable[[Contexts], Float[torch.Tensor, "C V"]],
    prompt: tuple[int, ...],
    sampling: SamplingParams,
) -> dict[tuple[int, ...], float]:
    unfinished: dict[tuple[int, ...], float] = {(): 1.0}
    finished: dict[tuple[int, ...], float] = {}
    for _ in range(sampling.max_new_tokens):
        logits = say([(*prompt, *output) for output in unfinished]).numpy()
        longer: dict[tuple[int, ...], float] = {}
        for (output, mass), row in zip(unfinished.items(), logits, strict=True):
            for token, p in enumerate(next_token_probs(row, prompt, output, sampling)):
                if p > 0:
                    place = finished if token in sampling.stop_token_ids else longer
                    place[*output, token] = mass * float(p)
        unfinished = longer
    return finished | unfinished


def ragged_prompts(toy: Toy, num: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of 1, 2, ... `LONGEST_PROMPT`, 1, 2, ... tokens: one or two at random, then what the toy finds likeliest.

    That soon repeats itself, so that lookups find something, and something that the target may accept.
    """
    rng = np.random.default_rng(seed)
    lengths = [1 + i % LONGEST_PROMPT for i in range(num)]
    starts = [
        tuple(rng.integers(toy.vocab_size, size=min(1 + i % 2, n)).tolist())
        for i, n in enumerate(lengths)
    ]
    rest = toy.greedy(starts, SamplingParams(max_new_tokens=LONGEST_PROMPT))
    return [(*start, *more)[:n] for start, more, n in zip(starts, rest, lengths, strict=True)]
