"""What is measured: the shapes, sizes and repeats of a real measurement and of its rehearsal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Variant:
    """A way to run our side, such as compiled passes.

    Attributes:
        options: Of `CausalLM`, for the target and a draft model.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


GRAPHS = Variant("graphs", {"graphs": True})
COMPILED = Variant("graphs, compiled", {"graphs": True, "compile": True})


@dataclass(frozen=True)
class Scale:
    """Sizes of everything that is measured.

    Attributes:
        target, draft, head: Shapes that ship with the package.
        num_layers, vocab_size: What remains of the target where a few layers suffice.
        batches, contexts: Of plain decoding.
        num_new_tokens: TimedDecoding in one turn.
        num_profiled: Steps under the profiler.
        period: Tokens after which the prompt of speculation repeats itself.
        copy_bytes: What the memory bandwidth is measured with.
        max_prefill: Prompt tokens that continuous batching may have to prefill for one case.
        num_checked: Tokens of every output that correctness compares.
    """

    target: str
    draft: str
    head: str
    dtype: torch.dtype
    num_layers: int
    vocab_size: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    num_new_tokens: int
    num_profiled: int
    repeats: int
    period: int
    num_periods: int
    copy_bytes: int
    max_prefill: int
    num_checked: int
    acceptances: tuple[float, ...] = (0.6, 0.8)
    tree_size: int = 60
    variants: tuple[Variant, ...] = (GRAPHS,)


REAL = Scale(
    target="meta-llama/Llama-3.1-8B-Instruct",
    draft="meta-llama/Llama-3.2-1B-Instruct",
    head="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    dtype=torch.bfloat16,
    num_layers=4,
    vocab_size=16384,
    batches=(1, 8, 32),
    contexts=(1024, 8192, 32768),
    num_new_tokens=64,
    num_profiled=5,
    repeats=3,
    period=128,
    num_periods=8,
    copy_bytes=1 << 32,
    max_prefill=1 << 16,
    num_checked=48,
)
REHEARSAL = Scale(
    target="rehearsal/target",
    draft="rehearsal/draft",
    head="rehearsal/eagle3",
    dtype=torch.float32,
    num_layers=2,
    vocab_size=512,
    batches=(1, 2),
    contexts=(16, 48),
    num_new_tokens=24,
    num_profiled=2,
    repeats=2,
    period=48,
    num_periods=2,
    copy_bytes=1 << 20,
    max_prefill=1 << 10,
    num_checked=8,
)
