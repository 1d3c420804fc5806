"""Real decoding beside what training predicts of it, and a name for what is wrong where the two differ."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from specresearch.batch import Request
from specresearch.engine import Engine
from specresearch.metrics import StepRecord
from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.sampling import SamplingParams
from specresearch.training.estimate import Estimate, chances, expect
from specresearch.training.students import EagleStudent, Step, Student

SUSPICIOUS = 5.0
LEAST_VARIANCE = 4.0
CERTAIN = 1e-9
ROUNDING = {
    torch.float64: 0.0,
    torch.float32: 0.01,
}  # share of certain decisions that rounding may turn
ROUNDING_16_BITS = 0.05
ROTARY_BASES = (10_000, 500_000, 1_000_000)


class ParityError(RuntimeError):
    """Decoding accepts something else than training predicts."""


@dataclass(frozen=True)
class Trial:
    """A decoded request. steps: index of the root, drafts and accepted drafts of each step."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    steps: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Parity:
    """measured, predicted: tokens per step. z: how far what was accepted lies from what was predicted for that text, in
    deviations: by position of the draft, leaving out those hardly reached; last, whether drafts with a higher chance were
    accepted more often, by as much as predicted. Empty where chance decides nothing. turned: of the decisions that chance has
    no part in, the share that went the other way; tolerance: the most of it that rounding explains.
    """

    measured: float
    predicted: Estimate
    z: NDArray[np.float64]
    turned: float
    tolerance: float

    @property
    def deviation(self) -> float:
        return float(abs(self.z).max(initial=0.0))

    @property
    def holds(self) -> bool:
        return self.deviation < SUSPICIOUS and self.turned <= self.tolerance

    def __str__(self) -> str:
        return (
            f"decoding accepts {self.measured:.3f} tokens a step where training predicts "
            f"{self.predicted.mean_acceptance_length:.3f}; it is {self.deviation:.1f} standard deviations off where chance "
            f"decides, and {self.turned:.1%} of all else went the other way"
        )


def decode(
    student: Student,
    target: CausalLM,
    prompts: Sequence[Sequence[int]],
    num_drafts: int,
    sampling: SamplingParams,
    batch_size: int = 8,
) -> list[Trial]:
    """Decode prompts with the student's drafts, past end tokens, so that a text ends where its limit is."""
    records: list[StepRecord] = []
    engine = Engine(
        target,
        student.proposer(num_drafts),
        max_batch_size=batch_size,
        observers=[lambda step: records.append(step.record)],
    )
    sampling = replace(sampling, ignore_eos=True)
    requests = [Request(prompt, sampling, str(i)) for i, prompt in enumerate(prompts)]
    outputs = {output.id: output.checked().token_ids for output in engine.generate(requests)}
    steps: dict[str, list[tuple[int, int, int]]] = {request.id: [] for request in requests}
    for record in records:
        rows = zip(record.context, record.num_draft_tokens, record.num_accepted_tokens, strict=True)
        for id, row in zip(record.request_ids, rows, strict=True):
            steps[id].append(row)
    return [Trial(tuple(r.prompt_ids), outputs[r.id], tuple(steps[r.id])) for r in requests]


def compare(
    student: Student, target: CausalLM, trials: Sequence[Trial], num_drafts: int, temperature: float
) -> Parity:
    """What was accepted, beside what the student predicts for the very texts that were decoded."""
    if not trials:
        raise ValueError("no decoded texts to compare predictions with")
    tables = [_chances(student, target, trial, num_drafts, temperature) for trial in trials]
    predicted = [
        expect(table, len(trial.prompt)) for table, trial in zip(tables, trials, strict=True)
    ]
    measured = sum(len(trial.output) for trial in trials) / sum(
        len(trial.steps) for trial in trials
    )
    position, chance, accepted = _decisions(trials, tables)
    is_certain = (chance < CERTAIN) | (chance > 1 - CERTAIN)
    turned = float((abs(accepted - chance)[is_certain] > 0.5).mean()) if is_certain.any() else 0.0
    return Parity(
        measured,
        sum(predicted[1:], predicted[0]),
        _deviations(position[~is_certain], chance[~is_certain], accepted[~is_certain]),
        turned,
        ROUNDING.get(target.dtype, ROUNDING_16_BITS),
    )


def _deviations(
    position: NDArray[np.int64], chance: NDArray[np.float64], accepted: NDArray[np.float64]
) -> NDArray[np.float64]:
    if not np.isfinite(chance).all():
        return np.array([np.inf])
    if not len(chance):
        return np.zeros(0)
    surplus, variance = accepted - chance, chance * (1 - chance)
    seen = np.bincount(position, variance) >= LEAST_VARIANCE
    by_position = np.bincount(position, surplus)[seen] / np.sqrt(
        np.bincount(position, variance)[seen]
    )
    slope = chance - chance.mean()
    spread = np.sqrt((slope**2 * variance).sum())
    return np.append(by_position, (slope * surplus).sum() / spread if spread > 0 else 0.0)


def check(
    student: Student, target: CausalLM, trials: Sequence[Trial], num_drafts: int, temperature: float
) -> Parity:
    """As `compare`; raises ParityError, naming the likeliest cause, unless decoding accepts what training predicts."""
    parity = compare(student, target, trials, num_drafts, temperature)
    if parity.holds:
        return parity
    raise ParityError(f"{parity}; {likely_cause(student, target, trials, num_drafts, temperature)}")


def _chances(
    student: Student, target: CausalLM, trial: Trial, num_drafts: int, temperature: float
) -> Float[Tensor, "K T"]:
    token_ids = torch.tensor([[*trial.prompt, *trial.output]], device=target.device)
    return chances(student, target, token_ids, num_drafts, temperature)


def _decisions(
    trials: Sequence[Trial], tables: Sequence[Tensor]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Every draft whose predecessors were all accepted: its position, the chance that it would be, and whether it was.

    tables: of each trial, as `chances` gives them.
    """
    rows = []
    for trial, table in zip(trials, tables, strict=True):
        kept = table.numpy()
        for root, drafted, accepted in trial.steps:
            known = min(drafted, accepted + 1, len(kept), kept.shape[1] - 2 - root)
            rows += [(i, kept[i, root + 1 + i], i < accepted) for i in range(known)]
    position, chance, accepted = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return position.astype(np.int64), chance, accepted


def likely_cause(
    student: Student, target: CausalLM, trials: Sequence[Trial], num_drafts: int, temperature: float
) -> str:
    """Which single change of training's conventions explains best what decoding accepted."""

    def misfit(changed: Student) -> float:
        tables = [_chances(changed, target, trial, num_drafts, temperature) for trial in trials]
        _, chance, accepted = _decisions(trials, tables)
        likely = np.where(accepted > 0, chance, 1 - chance)
        return -float(np.log(likely.clip(1e-3)).sum())

    best, name = misfit(student), ""
    for suspicion, change in suspicions(student):
        with change as changed:
            score = misfit(changed)
        if score < best - 10:
            best, name = score, suspicion
    if name:
        return f"training would predict it with this change: {name}"
    return "no known difference of conventions explains it; were the weights changed between training and decoding?"


class Shifted(Student):
    """Reads the features of a neighbouring token."""

    def __init__(self, inner: Student, by: int) -> None:
        self.inner, self.by = inner, by
        self.method, self.module, self.hidden_layers = (
            inner.method,
            inner.module,
            inner.hidden_layers,
        )
        self.samples, self.max_drafts = inner.samples, inner.max_drafts

    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        return self.inner.steps(
            token_ids, [layer.roll(self.by, dims=1) for layer in hidden], num_steps
        )

    def proposer(self, num_draft_tokens: int) -> Proposer:
        return self.inner.proposer(num_draft_tokens)

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        self.inner.save(folder, provenance)


@contextmanager
def _rotary(student: Student, base: int) -> Iterator[Student]:
    tables = [
        buffer for name, buffer in student.module.named_buffers() if name.endswith("inv_freq")
    ]
    kept = [table.clone() for table in tables]
    for table in tables:
        exponents = torch.arange(len(table), dtype=table.dtype, device=table.device) / len(table)
        table.copy_(base**-exponents)
    try:
        yield student
    finally:
        for table, frequencies in zip(tables, kept, strict=True):
            table.copy_(frequencies)


@contextmanager
def _target_embedding(student: EagleStudent) -> Iterator[Student]:
    head = student.model.head
    kept: nn.Embedding | None = head.embed_tokens
    head.embed_tokens = None
    try:
        yield student
    finally:
        head.embed_tokens = kept


def suspicions(student: Student) -> Iterator[tuple[str, AbstractContextManager[Student]]]:
    """What could be otherwise in a student of this kind, and the student with that change."""
    if student.hidden_layers:
        for by, where in ((-1, "later"), (1, "earlier")):
            told = f"features one token {where} (an index of features is off by one)"
            yield told, nullcontext(Shifted(student, by))
    if any(name.endswith("inv_freq") for name, _ in student.module.named_buffers()):
        for base in ROTARY_BASES:
            yield f"a rotary base of {base:,}", _rotary(student, base)
    if isinstance(student, EagleStudent):
        yield "the target's embedding (the embeddings are not shared)", _target_embedding(student)
