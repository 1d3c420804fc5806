"""Toy targets: random Llamas so small that all their outputs can be enumerated.

Logits come from plain forward passes over whole prefixes and never from the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from specresearch.certification.reference_sampling import penalized
from specresearch.models import CausalLM
from specresearch.sampling import SamplingParams

MAX_LEN = 64
NUM_LENGTHS = 12  # of prompts
DTYPES = ("float64", "float32", "float16", "bfloat16")
CPU = torch.device("cpu")
Contexts: TypeAlias = Sequence[tuple[int, ...]]


class PrefixLogits:
    """Next-token logits of a model, each from one pass over a whole prefix. Results are cached."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._logits = torch.empty((0, model.config.vocab_size), dtype=torch.float64)
        self._row_of: dict[tuple[int, ...], int] = {}

    @torch.inference_mode()
    def __call__(self, contexts: Contexts) -> Float[torch.Tensor, "C V"]:
        """Return the logits after each context."""
        new = [context for context in dict.fromkeys(contexts) if context not in self._row_of]
        if new:
            # a causal model ignores padding on the right
            padded = pad_sequence([torch.tensor(context) for context in new], batch_first=True)
            last = torch.tensor([len(context) - 1 for context in new])
            logits = self._model(padded, use_cache=False).logits[torch.arange(len(new)), last]
            for context in new:
                self._row_of[context] = len(self._row_of)
            self._logits = torch.cat([self._logits, logits.double()])
        return self._logits[[self._row_of[context] for context in contexts]]


@dataclass(frozen=True)
class Toy:
    """A random Llama over a vocabulary of a few tokens.

    Args:
        vocab_size: at least 3.
        seed: of the weights.
        sharpness: standard deviation of every matrix product's output; higher values give
            sharper distributions.
        dtype: of the target's weights and passes; one of `DTYPES`.
    """

    vocab_size: int = 5
    seed: int = 0
    sharpness: float = 1.0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.vocab_size < 3:
            raise ValueError(
                f"toy.vocab_size={self.vocab_size} must be at least 3, or drafts can hardly be "
                "wrong"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"toy.dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def is_exact(self) -> bool:
        """True if the target runs in float64, where rounding is too small to show."""
        return self.dtype == "float64"

    @cached_property
    def logits(self) -> PrefixLogits:
        """Logits of the target's weights in float64."""
        return PrefixLogits(self._build_target().double())

    @cached_property
    def rounded_logits(self) -> PrefixLogits:
        """Logits of the target in its own precision."""
        return PrefixLogits(self._build_target())

    def target(self, device: torch.device = CPU, graphs: bool | None = None) -> CausalLM:
        """Return a copy of the target for the engine, which replaces its attention."""
        model = _moved(self._build_target(), device)
        return CausalLM(model, max_len=MAX_LEN, graphs=graphs, name="toy")

    def draft(
        self,
        seed: int = 1,
        device: torch.device = CPU,
        graphs: bool | None = None,
        bits: int | None = None,
    ) -> CausalLM:
        """Return a smaller random model of the same vocabulary.

        Args:
            bits: Round its weights to as many.
        """
        model = self._build(hidden_size=8, num_layers=1, seed=self.seed + 1000 * seed)
        round_weights(model, bits)
        return CausalLM(_moved(model, device), max_len=MAX_LEN, graphs=graphs, name="toy_draft")

    def copy(self, bits: int | None) -> CausalLM:
        """Return a draft model with the target's weights, rounded to a number of bits."""
        model = self._build_target()
        round_weights(model, bits)
        return CausalLM(model, max_len=MAX_LEN, name="toy_copy")

    def _build_target(self) -> LlamaForCausalLM:
        return self._build(hidden_size=16, num_layers=3, seed=self.seed)

    def _build(self, hidden_size: int, num_layers: int, seed: int) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 3 // 2,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 4,
            num_key_value_heads=hidden_size // 8,
            max_position_embeddings=MAX_LEN,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config).double().eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    scale = self.sharpness / parameter.shape[-1] ** 0.5
                    parameter.normal_(generator=generator).mul_(scale)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.to(self.torch_dtype)
        return model

    def greedy(self, prompts: Contexts, sampling: SamplingParams) -> list[tuple[int, ...]]:
        """Return the likeliest token after every prefix, `max_new_tokens` times per prompt."""
        outputs: list[tuple[int, ...]] = [()] * len(prompts)
        for _ in range(sampling.max_new_tokens):
            contexts = [(*prompt, *out) for prompt, out in zip(prompts, outputs, strict=True)]
            logits = self.logits(contexts).numpy()
            for i, prompt in enumerate(prompts):
                scores = penalized(logits[i], prompt, outputs[i], sampling)
                outputs[i] = (*outputs[i], int(scores.argmax()))
        return outputs


@torch.no_grad()
def round_weights(model: torch.nn.Module, bits: int | None) -> None:
    """Round matrices to integers of `bits` bits with one scale for each output; None keeps them."""
    if bits is None:
        return
    largest = 2 ** (bits - 1) - 1
    for parameter in model.parameters():
        if parameter.dim() > 1:
            scale = parameter.abs().amax(-1, keepdim=True) / largest
            parameter.copy_((parameter / scale).round() * scale)


def _moved(model: LlamaForCausalLM, device: torch.device) -> LlamaForCausalLM:
    torch.nn.Module.to(model, device)
    return model


def ragged_prompts(toy: Toy, num: int, seed: int, *, shortest: int = 1) -> list[tuple[int, ...]]:
    """Return prompts of `NUM_LENGTHS` lengths, from `shortest` tokens up, over and over.

    Each starts with one or two random tokens and goes on with the target's likeliest ones. These
    soon repeat, so lookup proposers find matches that the target may accept.
    """
    rng = np.random.default_rng(seed)
    lengths = [shortest + i % NUM_LENGTHS for i in range(num)]
    starts = []
    for i, length in enumerate(lengths):
        num_random = min(1 + i % 2, length)
        starts.append(tuple(rng.integers(toy.vocab_size, size=num_random).tolist()))
    rest = toy.greedy(starts, SamplingParams(max_new_tokens=shortest + NUM_LENGTHS - 1))
    return [(*start, *more)[:n] for start, more, n in zip(starts, rest, lengths, strict=True)]
