"""The transformers library's own decoding, timed without prefill."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from specresearch.device_bench.bench import sharing_weights
from specresearch.models.hf_adapter import cache_argument

PAGE = 256  # tokens, the library's default
MAX_BATCH_TOKENS = 4096  # of a pass of continuous batching


class FirstDelivery(BaseStreamer):
    """Records when the first tokens after the prompt arrive, and their number."""

    def __init__(self) -> None:
        self.calls = 0
        self.time = 0.0
        self.num_tokens = 0

    def put(self, value: Tensor) -> None:
        self.calls += 1
        if self.calls == 2:
            self.time, self.num_tokens = time.perf_counter(), value.numel()

    def end(self) -> None:
        pass


def library_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that shares the weights and decodes with the library's attention."""
    copied = sharing_weights(model).eval()
    copied.set_attn_implementation("sdpa")
    config: Any = copied.generation_config
    config.eos_token_id, config.pad_token_id = None, 0
    return copied


@dataclass(frozen=True)
class Generated:
    """Decoding from the first delivery of tokens on."""

    num_tokens: int
    seconds: float
    outputs: tuple[tuple[int, ...], ...]

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_new_tokens: int, **options: Any
) -> Generated:
    """Decode prompts of equal lengths by `generate`, greedily."""
    ids = torch.tensor([list(prompt) for prompt in prompts], device=model.device)
    streamer, call = FirstDelivery(), _untyped(model).generate
    out = call(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_new_tokens,
        do_sample=False,
        streamer=streamer,
        **options,
    )
    outputs = tuple(tuple(row) for row in out[:, ids.shape[1] :].tolist())
    seconds = time.perf_counter() - streamer.time
    num_tokens = sum(map(len, outputs)) - streamer.num_tokens
    return Generated(num_tokens, seconds, outputs)


class PrefilledGenerate:
    """Decodes by `generate` after contexts that fill the library's cache with random values."""

    def __init__(self, model: PreTrainedModel, batch: int, context: int) -> None:
        self.model, self.context = model, context
        config: Any = model.config
        self.cache = DynamicCache(config=config)
        shape = (batch, config.num_key_value_heads, context, config.head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = (
                torch.randn(shape, dtype=model.dtype, device=model.device) for _ in range(2)
            )
            self.cache.update(keys, values, layer)

    def __call__(self, prompts: Sequence[Sequence[int]], num_new_tokens: int) -> Generated:
        try:
            return generate(
                self.model, prompts, num_new_tokens, **{cache_argument(self.model): self.cache}
            )
        finally:
            surplus = self.cache.get_seq_length() - self.context
            if surplus:
                self.cache.crop(-surplus)


def generate_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_new_tokens: int
) -> float:
    """Return the tokens per second of continuous batching, in the second half of all outputs."""
    longest = max(map(len, prompts)) + num_new_tokens
    settings: Any = ContinuousBatchingConfig(
        num_blocks=len(prompts) * (-(-longest // PAGE) + 1) + 1,
        max_batch_tokens=min(MAX_BATCH_TOKENS, sum(map(len, prompts))),
    )
    config = GenerationConfig(
        max_new_tokens=num_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    outputs = _untyped(model).generate_batch(
        [list(prompt) for prompt in prompts],
        generation_config=config,
        continuous_batching_config=settings,
        record_timestamps=True,
    )
    errors = [output.error for output in outputs.values() if output.error]
    if errors:
        raise RuntimeError(f"generate_batch failed: {errors[0]}")
    times = sorted(stamp for output in outputs.values() for stamp in output.timestamps or ())
    if len(times) != len(prompts) * num_new_tokens:
        raise RuntimeError(f"generate_batch delivered {len(times)} tokens only")
    middle = len(times) // 2
    return (len(times) - 1 - middle) / (times[-1] - times[middle])


class SyntheticCandidates(CandidateGenerator):
    """Costs what a candidate generator costs, and has the acceptance that it is given.

    Args:
        drafter: The library's own generator, which really drafts.
        output: The target's output after the prompt.
        random: Decides which candidates are right.
    """

    def __init__(
        self,
        drafter: CandidateGenerator,
        prompt_length: int,
        output: Sequence[int],
        acceptance: float,
        vocab_size: int,
        random: np.random.Generator,
    ) -> None:
        self.drafter: Any = drafter
        self.prompt_length, self.output = prompt_length, output
        self.acceptance, self.vocab_size, self.random = acceptance, vocab_size, random

    def get_candidates(self, input_ids: Tensor, **options: Any) -> tuple[Tensor, Any]:
        drafted, _ = self.drafter.get_candidates(input_ids, **options)
        begin, num = input_ids.shape[1], drafted.shape[1] - input_ids.shape[1]
        coming = self.output[begin - self.prompt_length :][:num]
        is_right = (self.random.random(num) < self.acceptance).cumprod()
        tokens = [
            token if right else (token + 1) % self.vocab_size
            for token, right in zip(coming, is_right, strict=False)
        ]
        new = torch.tensor([tokens], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, new], dim=1), None

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        self.drafter.update_candidate_strategy(input_ids, scores, num_matches)


class AssistedGenerate:
    """Decodes by the library's assisted generation, at a set acceptance.

    Args:
        options: Of `generate`: an assistant, or prompt lookup.
        output: The target's output after the prompt, beyond the tokens to decode.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt: Sequence[int],
        output: Sequence[int],
        acceptance: float,
        **options: Any,
    ) -> None:
        self.model, self.prompt, self.options = sharing_weights(model), prompt, options
        make: Any = self.model._get_candidate_generator
        random = np.random.default_rng(0)
        vocab_size = self.model.config.vocab_size

        def make_synthetic(*args: Any, **named: Any) -> CandidateGenerator:
            drafter = make(*args, **named)
            return SyntheticCandidates(drafter, len(prompt), output, acceptance, vocab_size, random)

        object.__setattr__(self.model, "_get_candidate_generator", make_synthetic)

    def __call__(self, num_new_tokens: int) -> Generated:
        return generate(self.model, [self.prompt], num_new_tokens, **self.options)


def constant_assistant(model: PreTrainedModel, num_draft_tokens: int) -> PreTrainedModel:
    """Make the assistant draft the same number of tokens, whatever its confidence."""
    config: Any = model.generation_config
    config.num_assistant_tokens = num_draft_tokens
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    return model


def _untyped(model: PreTrainedModel) -> Any:
    return model
