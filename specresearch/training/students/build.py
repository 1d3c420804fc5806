"""Build a student from a proposer, with the proposer's weights or new ones that fit the target."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from jaxtyping import Int
from torch import Tensor

from specresearch.models import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import DraftModel, Eagle, LayerSkip, Medusa, Proposer
from specresearch.training.corpus.examples import Example
from specresearch.training.lora import Lora
from specresearch.training.students.draft_model import DraftStudent
from specresearch.training.students.eagle import EagleStudent
from specresearch.training.students.early_exit import EarlyExitStudent
from specresearch.training.students.initialization import (
    most_frequent,
    new_eagle_head,
    new_medusa_heads,
    reset_weights,
)
from specresearch.training.students.joint_medusa import JointMedusaStudent, JointSettings
from specresearch.training.students.medusa import MedusaStudent

Settings = TypeVar("Settings")


def draft_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    from_scratch: bool = False,
    lora: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> DraftStudent:
    """Build a draft LM student; `lora` trains adapters, `from_scratch` discards its weights."""
    assert isinstance(proposer, DraftModel)
    if proposer.draft.compiled:
        raise ValueError(
            "proposer.draft.compile=true: compiled passes keep the weights they were compiled "
            "with; set proposer.draft.compile=false"
        )
    adapters = _parse(Lora, lora, "student.lora")
    if from_scratch and adapters is not None:
        raise ValueError(
            "student.lora trains a few weights on top of frozen ones, and "
            "student.from_scratch=true discards those; drop one of the two"
        )
    student = DraftStudent(proposer.draft, target, adapters, seed)
    if from_scratch:
        reset_weights(proposer.draft.model, seed)
    return student


def early_exit_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    exit_weight: float = 1.0,
) -> EarlyExitStudent:
    """Build a copy of the target that learns to draft without what the proposer skips.

    Args:
        exit_weight: Weight of its loss as a drafter, beside that as a target.
    """
    assert isinstance(proposer, LayerSkip)
    return EarlyExitStudent(target, proposer.skipped_of(target), exit_weight)


def medusa_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    num_heads: int = 4,
    num_layers: int = 1,
    own_lm_head: bool = True,
    draft_vocab_size: int | None = None,
    joint: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> MedusaStudent:
    """Build a Medusa student; the sizes are those of new heads, if the proposer names none.

    LM heads of their own may draft only frequent tokens of `examples`.

    `joint` holds the settings of Medusa-2, which trains the target, too; None is Medusa-1.
    """
    assert isinstance(proposer, Medusa)
    if num_heads < 1 or num_layers < 1:
        raise ValueError(
            f"student.num_heads={num_heads}, student.num_layers={num_layers}: "
            "both must be at least 1"
        )
    heads = proposer.head
    if isinstance(heads, str):
        heads = MedusaHeads.from_pretrained(heads, revision=proposer.revision)
    if heads and draft_vocab_size is not None:
        raise _names_a_head(draft_vocab_size)
    if draft_vocab_size is not None and not own_lm_head:
        raise ValueError(
            f"student.draft_vocab_size={draft_vocab_size}: the target's LM head has all tokens; "
            "set student.own_lm_head=true"
        )
    if not heads:
        target_ids = _reduced_vocabulary(draft_vocab_size, examples, target)
        heads = new_medusa_heads(target, num_heads, num_layers, own_lm_head, target_ids)
    if joint is None:
        return MedusaStudent(heads, target)
    lora = _parse(Lora, joint.get("lora"), "student.joint.lora")
    settings = _parse(JointSettings, {**joint, "lora": lora}, "student.joint")
    assert settings is not None
    return JointMedusaStudent(heads, target, settings, seed)


def eagle_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    num_steps: int,
    token_weight: float,
    feature_weight: float,
    draft_vocab_size: int | None = None,
    seed: int = 0,
) -> EagleStudent:
    """Build an EAGLE student; a new EAGLE-3 head may draft only frequent tokens of `examples`."""
    assert isinstance(proposer, Eagle)
    if proposer.head:
        if draft_vocab_size is not None:
            raise _names_a_head(draft_vocab_size)
        model = proposer.load(target)
    else:
        if draft_vocab_size is not None and not proposer.format.reduces_vocabulary:
            raise ValueError(
                f"student.draft_vocab_size={draft_vocab_size}: an EAGLE-1 head drafts from the "
                "whole vocabulary; use proposer=eagle3"
            )
        target_ids = _reduced_vocabulary(draft_vocab_size, examples, target)
        layer_ids = _layer_ids(proposer, target)
        head = new_eagle_head(target, proposer.format, layer_ids, target_ids, seed)
        head.name = f"a new EAGLE-{proposer.format.version} head"
        model = EagleModel(head, target)
    return EagleStudent(model, num_steps, token_weight=token_weight, feature_weight=feature_weight)


def _parse(kind: type[Settings], values: Mapping[str, Any] | None, key: str) -> Settings | None:
    if values is None:
        return None
    known = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    for name in values:
        if name not in known:
            raise ValueError(f"{key} has no {name!r}; there are: {', '.join(known)}")
    return kind(**values)


def _names_a_head(draft_vocab_size: int) -> ValueError:
    return ValueError(
        f"student.draft_vocab_size={draft_vocab_size} is for new heads, and proposer.head "
        "names one; leave one out"
    )


def _reduced_vocabulary(
    draft_vocab_size: int | None, examples: Iterable[Example], target: CausalLM
) -> Int[Tensor, " D"] | None:
    """Return the most frequent tokens of the examples; None for the whole vocabulary."""
    if draft_vocab_size is None:
        return None
    if not 1 <= draft_vocab_size <= target.vocab_size:
        raise ValueError(
            f"student.draft_vocab_size={draft_vocab_size} must lie between 1 and the target's "
            f"{target.vocab_size}"
        )
    return most_frequent(examples, draft_vocab_size, target.vocab_size)


def _layer_ids(proposer: Eagle, target: CausalLM) -> tuple[int, ...]:
    """Return the target layers that a new head reads; a low, middle and high one if unset."""
    if proposer.layer_ids is not None:
        offset = 1 if proposer.id_convention == "outputs" else 0
        return tuple(int(layer) + offset for layer in proposer.layer_ids)
    num_layers = len(target.adapter.layers)
    return tuple(sorted({min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)}))
