"""Recordings of tiny models, and what the engine itself does with other settings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import config as checks
from tiny_models import VOCAB, build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.controllers import Controller, Fixed
from specresearch.metrics import Counts
from specresearch.proposers import DraftModel, NGram, Proposer
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.recording.recording import Recording

NGRAM = {"_target_": "specresearch.proposers.NGram", "num_draft_tokens": 8, "n_max": 3, "n_min": 1}
SIDE = "method"


@contextmanager
def unchecked() -> Iterator[None]:
    """Turn off shape checks, which would take most of the time here."""
    before = checks.jaxtyping_disable
    checks.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        checks.update("jaxtyping_disable", before)


@cache
def target() -> CausalLM:
    return CausalLM(build("llama", seed=1), max_len=56, name="tiny", self_test=False)


@cache
def draft(noise: float) -> CausalLM:
    """A draft LM that agrees with the target more or less often."""
    model = build("llama", seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
    return CausalLM(model, max_len=56, self_test=False)


def draft_model(num_draft_tokens: int | None, noise: float = 0.05, **settings: Any) -> DraftModel:
    return DraftModel(draft(noise), num_draft_tokens, **settings)


def ngram(num_draft_tokens: int = 8) -> NGram:
    return NGram(num_draft_tokens, n_max=3, n_min=1)


def requests_of(
    num: int, temperature: float = 0.0, num_tokens: int = 24, **settings: Any
) -> list[Request]:
    """Prompts that repeat themselves, of several lengths, one seed each."""
    rng = torch.Generator().manual_seed(7)
    found = []
    for i in range(num):
        part = torch.randint(1, VOCAB, (3 + i % 4,), generator=rng).tolist()
        sampling = SamplingParams(
            temperature=temperature, seed=i, max_new_tokens=num_tokens - i % 5
        )
        found.append(Request((part * 4)[: 8 + i % 5], sampling, f"r{i}", **settings))
    return found


def record(
    folder: Path,
    proposer: Proposer,
    requests: Sequence[Request],
    *,
    acceptance: AcceptanceSampler | None = None,
    controller: Controller | None = None,
    batch_size: int = 4,
    config: dict[str, Any] | None = None,
) -> Recording:
    rule = acceptance or Rejection()
    header = describe_recording(
        target(),
        proposer,
        rule,
        "tried",
        {"baseline": None, SIDE: controller or Fixed()},
        config or {},
    )
    recorder = Recorder(folder, header)
    for side, parts in (("baseline", (None, None, None)), (SIDE, (proposer, rule, controller))):
        recorder.begin(side)
        with unchecked():
            list(
                Engine(target(), *parts, max_batch_size=batch_size, observers=[recorder]).generate(
                    requests
                )
            )
        recorder.end()
    recorder.write(complete=True)
    return Recording(folder)


def decoded(
    proposer: Proposer | None,
    requests: Sequence[Request],
    *,
    acceptance: AcceptanceSampler | None = None,
    controller: Controller | None = None,
    batch_size: int = 4,
) -> dict[str, Counts]:
    """What the engine counts, by request."""
    engine = Engine(target(), proposer, acceptance, controller, max_batch_size=batch_size)
    with unchecked():
        return {output.id: output.record.counts for output in engine.generate(requests)}
