"""Students from the proposer of the command line: its own weights to go on with, or new ones that fit the target."""

from collections.abc import Iterable

from specresearch.models import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import DraftModel, Eagle, Eagle3, Medusa, Proposer
from specresearch.training.examples import Example
from specresearch.training.new_heads import most_frequent, new_eagle_head, new_medusa_heads
from specresearch.training.students import DraftStudent, EagleStudent, MedusaStudent


def draft_student(
    proposer: Proposer, target: CausalLM, examples: Iterable[Example], *, from_scratch: bool = False
) -> DraftStudent:
    """from_scratch: random weights in place of the draft's own."""
    assert isinstance(proposer, DraftModel)
    if from_scratch:
        proposer.draft.model.init_weights()
    return DraftStudent(proposer.draft, target)


def medusa_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    num_heads: int = 4,
    num_layers: int = 1,
    own_lm_head: bool = True,
) -> MedusaStudent:
    """The last three say what new heads are made of, where the proposer names none."""
    assert isinstance(proposer, Medusa)
    if num_heads < 1 or num_layers < 1:
        raise ValueError(f"student.num_heads={num_heads}, student.num_layers={num_layers}: both must be at least 1")
    heads = proposer.head
    if isinstance(heads, str):
        heads = MedusaHeads.from_pretrained(heads, revision=proposer.revision)
    return MedusaStudent(heads or new_medusa_heads(target, num_heads, num_layers, own_lm_head), target)


def eagle_student(
    proposer: Proposer,
    target: CausalLM,
    examples: Iterable[Example],
    *,
    num_steps: int,
    token_weight: float,
    feature_weight: float,
    draft_vocab_size: int | None = None,
) -> EagleStudent:
    """draft_vocab_size: of a new head; the tokens that `examples` hold most often."""
    assert isinstance(proposer, Eagle)
    version = 3 if isinstance(proposer, Eagle3) else 1
    if proposer.head:
        model = proposer.load(target)
    else:
        if draft_vocab_size is not None and not 1 <= draft_vocab_size <= target.vocab_size:
            raise ValueError(
                f"student.draft_vocab_size={draft_vocab_size} must lie between 1 and the target's {target.vocab_size}"
            )
        target_ids = None
        if draft_vocab_size is not None:
            target_ids = most_frequent(examples, draft_vocab_size, target.vocab_size)
        head = new_eagle_head(target, version, _layers(proposer, target), target_ids)
        head.name = f"a new EAGLE-{version} head"
        model = EagleModel(head, target)
    return EagleStudent(model, num_steps, token_weight=token_weight, feature_weight=feature_weight)


def _layers(proposer: Eagle, target: CausalLM) -> tuple[int, ...]:
    """Target layers whose inputs a new head reads: as the settings say, or the usual low, middle and high ones."""
    if proposer.layer_ids is not None:
        return tuple(int(k) + (proposer.id_convention == "outputs") for k in proposer.layer_ids)
    num_layers = len(target.adapter.layers)
    usual = (min(2, num_layers), num_layers // 2, max(num_layers - 3, 0))
    return tuple(sorted(set(usual)))
