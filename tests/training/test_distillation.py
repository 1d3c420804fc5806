"""The loss of a batch equals a sum over positions; students train in two precisions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tiny_heads import EAGLE3, WIDE, eagle_head
from tiny_models import VOCAB, build
from torch import Tensor

from specresearch import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.head_fit import lm_head_of
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.proposers import DraftModel, Eagle, Eagle3, Medusa
from specresearch.training.corpus.examples import Example
from specresearch.training.distillation import Distillation
from specresearch.training.objectives import ForwardKL
from specresearch.training.students import EagleStudent, Student, StudentStep
from specresearch.training.students.build import draft_student, eagle_student, medusa_student
from specresearch.training.students.initialization import (
    most_frequent,
    new_medusa_heads,
    reset_weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:the target is .* times the draft:UserWarning")
TARGET = CausalLM(build("llama", seed=1, num_hidden_layers=5), max_len=60)
GENERATOR = torch.Generator().manual_seed(0)
EXAMPLES = [
    Example.reply([1, 2, 3, 4], torch.randint(VOCAB, (length,), generator=GENERATOR).tolist())
    for length in (8, 5, 8, 3)
]


def target(dtype: torch.dtype = torch.float64) -> CausalLM:
    return (
        TARGET
        if dtype == torch.float64
        else CausalLM(build("llama", seed=1, num_hidden_layers=5, dtype=dtype))
    )


def draft(of: CausalLM) -> Student:
    model = build("llama", seed=2, num_hidden_layers=1, dtype=of.dtype)
    return draft_student(DraftModel(CausalLM(model, max_len=of.max_len)), of, [])


def eagle3(of: CausalLM, **settings: Any) -> Student:
    unrolled = {"num_steps": 3, "token_weight": 1.0, "feature_weight": 0.0}
    return eagle_student(Eagle3(), of, EXAMPLES, **unrolled | settings)


STUDENTS: dict[str, Callable[[CausalLM], Student]] = {
    "draft_model": draft,
    "medusa": lambda of: medusa_student(Medusa(), of, []),
    "medusa, sharing": lambda of: medusa_student(Medusa(), of, [], num_heads=2, own_lm_head=False),
    "medusa, reduced vocabulary": lambda of: medusa_student(
        Medusa(), of, EXAMPLES, draft_vocab_size=17
    ),
    "eagle": lambda of: eagle_student(
        Eagle(), of, [], num_steps=1, token_weight=0.1, feature_weight=1.0
    ),
    "eagle3": eagle3,
    "eagle3, reduced vocabulary": lambda of: eagle3(of, draft_vocab_size=17),
    "eagle3, regression": lambda of: eagle3(of, feature_weight=0.5),
}


def batch(rows: int = 4) -> tuple[Tensor, Tensor]:
    """Return examples of several lengths, with some tokens inside that carry no loss."""
    generator = torch.Generator().manual_seed(3)
    token_ids = torch.randint(VOCAB, (rows, 14), generator=generator)
    mask = torch.rand((rows, 14), generator=generator) < 0.6
    mask[:, 0] = False
    mask[1, 9:] = False
    return token_ids, mask


def one_by_one(
    student: Student, token_ids: Tensor, mask: Tensor
) -> tuple[float, list[tuple[float, float, int, float]]]:
    """Compute losses and metrics one position at a time from full logits.

    Returns:
        The loss, and for each step its loss, acceptance, number of rows and feature distance.
    """
    outputs = TARGET.forward_whole(
        token_ids, (FINAL_NORM, *student.hidden_layers), want_logits=True
    )
    p = outputs.logits.softmax(-1)
    total, parts = 0.0, []
    for i, step in enumerate(student.steps(token_ids, outputs.hidden[1:])):
        loss = accepted = distance = 0.0
        num_rows = 0
        q = step.readout(step.states.flatten(0, 1)).softmax(-1).unflatten(0, step.states.shape[:2])
        ids = slice(None) if step.target_ids is None else step.target_ids
        for b, end in mask.nonzero().tolist():
            t = end - step.shift - 1
            if t < step.first_row:
                continue
            target_probs, drafted = p[b, t + step.shift, ids], q[b, t]
            num_rows += 1
            accepted += float(
                torch.minimum(target_probs, drafted).sum()
                if student.samples
                else target_probs[drafted.argmax()]
            )
            target_probs = target_probs / target_probs.sum()
            if step.target_ids is None or p[b, t + step.shift].argmax() in step.target_ids:
                loss += float((target_probs * (target_probs / drafted).log()).sum())
            if step.regression is not None:
                gap = (step.regression[0][b, t] - step.regression[1][b, t]).abs()
                distance += float(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
        total += 0.8**i * (student.token_weight * loss + student.feature_weight * distance)
        parts.append((loss, accepted, num_rows, distance))
    return total / int(mask.sum()), parts


@pytest.mark.parametrize("name", STUDENTS)
def test_the_loss_is_the_sum_over_positions(name: str) -> None:
    student = STUDENTS[name](TARGET)
    distillation = Distillation(student, TARGET, ForwardKL(), chunk_rows=5)
    token_ids, mask = batch()
    loss = distillation(token_ids, mask)
    with torch.no_grad():
        expected, parts = one_by_one(student, token_ids, mask)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)
    totals = distillation.pop_totals()
    assert list(totals) == [f"step_{i}" for i in range(len(parts))]
    sums = torch.stack(list(totals.values()))
    exact, distances = torch.tensor(parts, dtype=torch.float64).split([3, 1], dim=1)
    torch.testing.assert_close(sums[:, [0, 1, 3]], exact, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sums[:, 4:], distances, rtol=1e-5, atol=1e-6)  # kept in float32
    assert ((sums[:, 2] >= 0) & (sums[:, 2] <= sums[:, 3])).all()
    assert not distillation.pop_totals()


@pytest.mark.parametrize("name", ["eagle", "eagle3, regression"])
def test_the_feature_loss_pulls_features_towards_the_targets(name: str) -> None:
    student = STUDENTS[name](TARGET)
    assert isinstance(student, EagleStudent)
    outputs = TARGET.forward_whole(batch()[0], (FINAL_NORM, *student.hidden_layers))
    for step in student.steps(batch()[0], outputs.hidden[1:]):
        assert step.regression is not None
        predicted, truth = step.regression
        torch.testing.assert_close(truth, outputs.hidden[0][:, 1:])
        lm_head = student.model.head.lm_head or lm_head_of(TARGET)
        torch.testing.assert_close(lm_head(predicted), step.readout(step.states))


def test_a_head_of_another_width_has_no_feature_loss() -> None:
    model = EagleModel(eagle_head(3, **EAGLE3["narrow"]), WIDE)
    EagleStudent(model, feature_weight=0.0)
    with pytest.raises(ValueError, match=r"feature_weight=0\.5: the head is 16 wide .* 24 wide"):
        EagleStudent(model, feature_weight=0.5)


def test_rows_before_a_steps_first_one_carry_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """At step i of an EAGLE head, the first i pairs have inputs that no draft ever has."""
    student = eagle3(TARGET)
    distillation = Distillation(student, TARGET, ForwardKL())
    token_ids, mask = batch()
    mask[:, 1:5] = True
    losses, steps = [float(distillation(token_ids, mask).detach())], student.steps

    def disturbed(first_row: bool, *inputs: Any) -> Iterator[StudentStep]:
        for i, step in enumerate(steps(*inputs)):
            assert step.first_row == i
            states = torch.cat([torch.randn_like(step.states[:, :i]), step.states[:, i:]], dim=1)
            yield replace(step, states=states, first_row=i if first_row else 0)

    for first_row in (True, False):
        monkeypatch.setattr(student, "steps", partial(disturbed, first_row))
        losses.append(float(distillation(token_ids, mask).detach()))
    assert losses[1] == losses[0]
    assert losses[2] != losses[0]


@pytest.mark.parametrize("name", STUDENTS)
def test_every_weight_of_the_student_gets_a_gradient_and_none_of_the_target(name: str) -> None:
    distillation = Distillation(STUDENTS[name](TARGET), TARGET, ForwardKL())
    distillation(*batch()).backward()
    assert all(
        weight.grad is not None and weight.grad.abs().max() > 0
        for weight in distillation.module.parameters()
    )
    assert all(weight.grad is None for weight in TARGET.model.parameters())


@pytest.mark.parametrize("name", ["draft_model", "eagle3"])
def test_the_loss_of_a_batch_is_the_sum_over_its_rows(name: str) -> None:
    """However rows are padded, and even if a row has nothing to predict."""
    distillation = Distillation(STUDENTS[name](TARGET), TARGET, ForwardKL())
    token_ids, mask = batch()
    mask[2] = False
    batch_loss = distillation(token_ids, mask)
    lengths = (14, 9, 14, 14)
    rows = [
        distillation(token_ids[i : i + 1, :length], mask[i : i + 1, :length], mask.sum())
        for i, length in enumerate(lengths)
    ]
    torch.testing.assert_close(batch_loss, torch.stack(rows).sum())


@pytest.mark.parametrize("name", ["draft_model", "medusa", "medusa, sharing", "eagle", "eagle3"])
def test_sixteen_bit_students_train_in_float32_and_are_cast_back(name: str) -> None:
    of = target(torch.bfloat16)
    student = STUDENTS[name](of)
    loaded = [weight.detach().clone() for weight in student.module.parameters()]
    distillation = Distillation(student, of, ForwardKL())
    assert distillation.autocasts
    distillation(*batch()).backward()
    trained = list(student.module.parameters())
    assert all(weight.dtype == torch.float32 and weight.grad is not None for weight in trained)
    with torch.no_grad():
        for weight in trained:
            weight += 1e-3
    originals = [weight.detach().clone() for weight in trained]
    with distillation.decoding_mode() as decoded:
        assert all(weight.dtype == torch.bfloat16 for weight in decoded.module.parameters())
        assert decoded.proposer(2).num_draft_tokens == 2
    for before, after, old in zip(originals, student.module.parameters(), loaded, strict=True):
        assert torch.equal(before, after)
        torch.testing.assert_close(after - 1e-3, old.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["draft_model", "medusa", "eagle3"])
def test_autocast_changes_the_loss_only_by_rounding(name: str) -> None:
    of = target(torch.float32)
    losses = [
        Distillation(STUDENTS[name](of), of, ForwardKL(), precision=p)(*batch())
        for p in ("float32", "bfloat16")
    ]
    assert losses[0] != losses[1]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.03, atol=0.0)


@pytest.mark.parametrize(
    ("dtype", "precision", "message"),
    [
        (
            torch.float64,
            "half",
            "train.precision='half' is unknown; choose one of auto, float32, bfloat16",
        ),
        (torch.bfloat16, "float32", "train.precision=float32 and a target in bfloat16"),
    ],
)
def test_impossible_precisions_are_rejected(
    dtype: torch.dtype, precision: str, message: str
) -> None:
    of = target(dtype)
    with pytest.raises(ValueError, match=message):
        Distillation(draft(of), of, ForwardKL(), precision=precision)


def test_new_drafters_depend_only_on_the_seed() -> None:
    model = build("llama", seed=2, num_hidden_layers=1)
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    drawn = []
    for seed in (0, 1, 0):
        torch.manual_seed(7 + len(drawn))
        reset_weights(model, seed)
        drawn.append(model.model.layers[0].mlp.up_proj.weight.detach().clone())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], before)


def test_new_medusa_heads_predict_what_the_target_predicts() -> None:
    heads = new_medusa_heads(TARGET, 2, 1, own_lm_head=True).double()
    with torch.no_grad():
        output = TARGET.forward_whole(batch()[0], (FINAL_NORM,), want_logits=True)
        for logits in heads(output.hidden[0], lm_head_of(TARGET)).unbind(-2):
            torch.testing.assert_close(logits, output.logits)


def test_the_reduced_vocabulary_holds_the_most_common_predicted_tokens() -> None:
    examples = [
        Example([9, 9, 9, 3, 3, 5], [False, False, False, True, True, True]),
        Example([1, 5, 2], [False] * 3),
    ]
    assert most_frequent(examples, 2, VOCAB).tolist() == [3, 5]
    assert most_frequent(examples, 3, VOCAB).tolist() == [0, 3, 5]
