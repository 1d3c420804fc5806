"""Students from the proposer of the command line: its own weights to go on with, or new ones that fit the target."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from specresearch.models import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_format import EagleFormat
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import DraftModel, Eagle, Medusa, Proposer
from specresearch.training.examples import Example
from specresearch.training.joint import Joint, JointMedusaStudent
from specresearch.training.lora import Lora
from specresearch.training.new_heads import (
    forget_weights,
    most_frequent,
    new_eagle_head,
    new_medusa_heads,
)
from specresearch.training.students import DraftStudent, EagleStudent, MedusaStudent

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
    """from_scratch: random weights in place of the draft's own. lora: settings of adapters to train in place of all weights.

    Raises ValueError for a draft that is compiled, for adapters of random weights, and for unknown settings.
    """
    assert isinstance(proposer, DraftModel)
    if proposer.draft.compiled:
        raise ValueError(
            "proposer.draft.compile=true: compiled passes keep the weights that they were made with; set "
            "proposer.draft.compile=false"
        )
    adapters = _read(Lora, lora, "student.lora")
    if from_scratch and adapters is not None:
        raise ValueError(
            "student.lora trains little beside weights that stay, and student.from_scratch=true forgets those"
        )
    student = DraftStudent(proposer.draft, target, adapters, seed)
    if from_scratch:
        forget_weights(proposer.draft.model, seed)
    return student


def medusa_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    num_heads: int = 4,
    num_layers: int = 1,
    own_lm_head: bool = True,
    joint: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> MedusaStudent:
    """num_heads, num_layers, own_lm_head: what new heads are made of, where the proposer names none. joint: settings of Medusa-2,
    which trains the target with them; None: Medusa-1. seed: of random adapters. Raises ValueError for unknown settings."""
    assert isinstance(proposer, Medusa)
    if num_heads < 1 or num_layers < 1:
        raise ValueError(
            f"student.num_heads={num_heads}, student.num_layers={num_layers}: both must be at least 1"
        )
    heads = proposer.head
    if isinstance(heads, str):
        heads = MedusaHeads.from_pretrained(heads, revision=proposer.revision)
    heads = heads or new_medusa_heads(target, num_heads, num_layers, own_lm_head)
    if joint is None:
        return MedusaStudent(heads, target)
    lora = _read(Lora, joint.get("lora"), "student.joint.lora")
    return JointMedusaStudent(
        heads, target, _read(Joint, {**joint, "lora": lora}, "student.joint") or Joint(), seed
    )


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
    """draft_vocab_size: of a new EAGLE-3 head; the tokens that `examples` hold most often. Raises ValueError where it does not
    apply, or asks for more than there are."""
    assert isinstance(proposer, Eagle)
    if proposer.head:
        if draft_vocab_size is not None:
            raise ValueError(
                f"student.draft_vocab_size={draft_vocab_size} is for new heads, and proposer.head names one; leave one out"
            )
        model = proposer.load(target)
    else:
        target_ids = None
        if draft_vocab_size is not None:
            _check_vocabulary(draft_vocab_size, proposer.format, target)
            target_ids = most_frequent(examples, draft_vocab_size, target.vocab_size)
        head = new_eagle_head(target, proposer.format, _layers(proposer, target), target_ids, seed)
        head.name = f"a new EAGLE-{proposer.format.version} head"
        model = EagleModel(head, target)
    return EagleStudent(model, num_steps, token_weight=token_weight, feature_weight=feature_weight)


def _read(kind: type[Settings], values: Mapping[str, Any] | None, key: str) -> Settings | None:
    if values is None:
        return None
    known = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    strange = [name for name in values if name not in known]
    if strange:
        raise ValueError(f"{key} has no {strange[0]!r}; there are: {', '.join(known)}")
    return kind(**values)


def _check_vocabulary(draft_vocab_size: int, format: type[EagleFormat], target: CausalLM) -> None:
    if not format.reduces_vocabulary:
        raise ValueError(
            f"student.draft_vocab_size={draft_vocab_size}: an EAGLE-1 head drafts from the whole vocabulary; use proposer=eagle3"
        )
    if not 1 <= draft_vocab_size <= target.vocab_size:
        raise ValueError(
            f"student.draft_vocab_size={draft_vocab_size} must lie between 1 and the target's {target.vocab_size}"
        )


def _layers(proposer: Eagle, target: CausalLM) -> tuple[int, ...]:
    """Target layers whose inputs a new head reads: as the settings say, or the usual low, middle and high ones."""
    if proposer.layer_ids is not None:
        return tuple(int(k) + (proposer.id_convention == "outputs") for k in proposer.layer_ids)
    num_layers = len(target.adapter.layers)
    usual = (min(2, num_layers), num_layers // 2, max(num_layers - 3, 0))
    return tuple(sorted(set(usual)))
