"""Find which convention of training differs from decoding when the two disagree."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from specresearch.training.acceptance_estimate import AcceptancePredictor
from specresearch.training.parity import DecodedText, collect_decisions
from specresearch.training.students import EagleStudent, Student, StudentStep
from specresearch.training.students.base import HiddenStates, TokenIds

ROTARY_BASES = (10_000, 500_000, 1_000_000)
MIN_IMPROVEMENT = 10  # nats


def likely_cause(predictor: AcceptancePredictor, texts: Sequence[DecodedText]) -> str:
    """Name the one change of training's conventions that best explains what was accepted."""
    best = _negative_log_likelihood(predictor, texts)
    cause = None
    for description, change in _suspects(predictor.student):
        with change as student:
            score = _negative_log_likelihood(replace(predictor, student=student), texts)
        if score < best - MIN_IMPROVEMENT:
            best, cause = score, description
    if cause is not None:
        return f"training would predict it with this change: {cause}"
    return (
        "no known difference of conventions explains it; "
        "were the weights changed between training and decoding?"
    )


def _negative_log_likelihood(predictor: AcceptancePredictor, texts: Sequence[DecodedText]) -> float:
    tables = [predictor.probs(text.prompt, text.output) for text in texts]
    decisions = collect_decisions(texts, tables)
    likelihood = np.where(decisions.accepted > 0, decisions.prob, 1 - decisions.prob)
    return -float(np.log(likelihood.clip(1e-3)).sum())


def _suspects(student: Student) -> Iterator[tuple[str, AbstractContextManager[Student]]]:
    """Yield conventions that may differ, and the student changed accordingly."""
    if student.hidden_layers:
        for offset, where in ((-1, "later"), (1, "earlier")):
            description = f"features one token {where} (an index of features is off by one)"
            yield description, nullcontext(shift_features(student, offset))
    if any(name.endswith("inv_freq") for name, _ in student.module.named_buffers()):
        for base in ROTARY_BASES:
            yield f"a rotary base of {base:,}", _rotary_base(student, base)
    if isinstance(student, EagleStudent):
        yield "the target's embedding (the embeddings are not shared)", _target_embedding(student)


def shift_features(student: Student, offset: int) -> Student:
    """Return a copy that reads the target's features `offset` tokens to the right."""
    shifted = copy.copy(student)

    def steps(
        token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        layers = [layer.roll(offset, dims=1) for layer in hidden]
        return student.steps(token_ids, layers, num_steps)

    shifted.steps = steps
    return shifted


@contextmanager
def _rotary_base(student: Student, base: int) -> Iterator[Student]:
    tables: list[torch.Tensor] = []
    for name, buffer in student.module.named_buffers():
        if name.endswith("inv_freq"):
            tables.append(buffer)
    originals = [table.clone() for table in tables]
    for table in tables:
        exponents = torch.arange(len(table), dtype=table.dtype, device=table.device) / len(table)
        table.copy_(base**-exponents)
    try:
        yield student
    finally:
        for table, original in zip(tables, originals, strict=True):
            table.copy_(original)


@contextmanager
def _target_embedding(student: EagleStudent) -> Iterator[Student]:
    head = student.model.head
    embedding: nn.Embedding | None = head.embed_tokens
    head.embed_tokens = None
    try:
        yield student
    finally:
        head.embed_tokens = embedding
