"""Settings of the command that measures what quantisation costs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Ge, Le

from specresearch.settings.base import TARGET, key, progress_key, seed_key
from specresearch.settings.data import DATASET
from specresearch.settings.drafting import MAX_DRAFTS, PRECISIONS, PROPOSER
from specresearch.settings.pairs import PairSchema

NAMES = (*PRECISIONS, "int8", "int4", "float8")
DRAFT_MODEL = "specresearch.proposers.DraftModel"
Precision = str | dict[str, Any]
Temperature = Annotated[float, Ge(0), Le(1e5)]
Length = Annotated[int, Ge(1), Le(MAX_DRAFTS)]


class PenaltySchema(PairSchema):
    proposer: Annotated[
        Any, replace(PROPOSER, excluded=frozenset(PROPOSER.models) - {DRAFT_MODEL})
    ] = key("draft_model, whose draft is measured", "draft_model")
    dataset: Annotated[Any, DATASET] = key("the prompts", "gsm8k")
    targets: list[Precision] = key(
        f"precisions of the target, the full one first: {', '.join(NAMES)}, or as "
        "target.quantization",
        ["bf16", "int8"],
        min_length=1,
    )
    drafts: list[Precision] = key(
        "precisions of the draft; the others are compared with the first",
        ["bf16", "int4"],
        min_length=1,
    )
    temperatures: list[Temperature] = key("temperatures to decode at", [0.0, 1.0], min_length=1)
    lengths: list[Length] = key(
        "lengths of chains, of which each pair gets its fastest", [1, 2, 4], min_length=1
    )
    num_prompts: int = key("prompts in all", 32, ge=2)
    num_trials: int = key("of these, the first ones choose the length", 4, ge=1)
    max_new_tokens: int = key("longest output in tokens", 64, ge=1)
    seed: int = seed_key("of sampled tokens")
    resume: bool = key("continue the run in hydra.run.dir", True)
    progress: bool = progress_key()

    def conflicts(self) -> Iterator[str]:
        full = self.targets[0]
        if not isinstance(full, str) or full not in PRECISIONS:
            yield (
                f"targets={self.targets} must begin with a full precision, which the others are "
                f"compared with: one of {', '.join(PRECISIONS)}"
            )
        for name in ("targets", "drafts"):
            values = getattr(self, name)
            yield from _problems(name, values, full)
        if self.proposer.get(TARGET) != DRAFT_MODEL:
            yield "the proposer has no draft model to quantise; use proposer=draft_model"
        elif self.proposer["draft"].get("quantization"):
            yield "proposer.draft.quantization is what drafts=[...] lists; leave it out"
        if self.target.get("quantization"):
            yield "target.quantization is what targets=[...] lists; leave it out"
        if self.num_trials >= self.num_prompts:
            yield (
                f"num_trials={self.num_trials} leaves none of num_prompts={self.num_prompts} to "
                "measure"
            )


def _problems(name: str, values: list[Precision], full: Precision) -> Iterator[str]:
    if len({str(value) for value in values}) < len(values):
        yield f"{name}={values} names a precision twice"
    for value in values:
        if isinstance(value, str) and value not in NAMES:
            yield f"{name}={values}: {value} is unknown; choose among {', '.join(NAMES)}"
        elif isinstance(value, str) and value in PRECISIONS and value != full:
            yield f"{name}={values}: {value} is no quantisation of {full}; use one full precision"
