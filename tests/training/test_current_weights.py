"""Students decode with their current weights, however these were changed."""

from collections.abc import Callable

import pytest
import torch
from test_distillation import STUDENTS, target
from test_joint_medusa import KINDS, LORA
from test_lora import randomize
from tiny_models import build
from torch import Tensor, nn

from specresearch import CausalLM
from specresearch.models import packed
from specresearch.models.linear_kernels import ONEDNN, serves
from specresearch.models.packed import has_packed_layers, pack_linear_layers
from specresearch.proposers import DraftModel, Medusa
from specresearch.training.distillation import Distillation
from specresearch.training.objectives import ForwardKL
from specresearch.training.students import DraftStudent, Student
from specresearch.training.students.build import draft_student, medusa_student
from specresearch.training.students.joint_medusa import JointMedusaStudent

pytestmark = [
    pytest.mark.filterwarnings("ignore:the target is .* times the draft:UserWarning"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN"),
]
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not serves(ONEDNN, torch.bfloat16), reason="oneDNN has no bfloat16 on this processor"
)
PROMPT = list(range(1, 9))


@pytest.fixture(autouse=True)
def _small_layers_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SMALLEST_WEIGHT", 0)


def draft(of: CausalLM, **settings: object) -> Student:
    model = CausalLM(
        build("llama", seed=2, num_hidden_layers=1, dtype=of.dtype), max_len=of.max_len
    )
    assert has_packed_layers(model.model)
    return draft_student(DraftModel(model), of, [], **settings)  # pyright: ignore[reportArgumentType]


def joint(of: CausalLM, **settings: object) -> Student:
    assert has_packed_layers(of.model)
    return medusa_student(Medusa(), of, [], num_heads=2, joint={"warmup": 0.0} | settings)


DECODING: dict[str, Callable[[CausalLM], Student]] = {"draft_model": draft, "medusa, joint": joint}
ADAPTED: dict[str, Callable[[CausalLM], Student]] = {
    "draft_model": lambda of: draft(of, lora=LORA),
    "medusa, joint": lambda of: joint(of, lora=LORA),
}


def decoded(model: CausalLM) -> Tensor:
    """Return the logits that decoding computes."""
    with model.scratch_cache(1, 2 * len(PROMPT)):
        return model.extend((0,), [PROMPT]).logits.clone()


def expected(model: CausalLM) -> Tensor:
    """Return the logits of a model loaded with these weights."""
    fresh = build("llama", num_hidden_layers=len(model.adapter.layers), dtype=model.dtype)
    fresh.load_state_dict(
        {name: value.detach().clone() for name, value in model.model.state_dict().items()}
    )
    return decoded(CausalLM(fresh, pack_weights=False))


def step(kind: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        fused, foreach = kind == "fused", kind == "foreach"
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused, foreach=foreach).step()

    return change


def write_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.normal_()


def replace_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter.data)


def load(model: nn.Module) -> None:
    model.load_state_dict(
        {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    )


@torch.no_grad()
def copy(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter))


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "a fused step": step("fused"),
    "a foreach step": step("foreach"),
    "a write through .data": write_data,
    "other .data": replace_data,
    "a state dict": load,
    "a checkpoint": copy,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", DECODING)
def test_decoding_uses_every_change_of_the_weights(name: str, change: str) -> None:
    (model,) = DECODING[name](target(torch.float32)).decoding_models
    before = decoded(model)
    for _ in range(2):
        CHANGES[change](model.model)
        logits = decoded(model)
        assert not torch.allclose(logits, before, rtol=0.1, atol=0.1)
        torch.testing.assert_close(logits, expected(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=NEEDS_BFLOAT16)]
)
@pytest.mark.parametrize("name", DECODING)
def test_decoding_in_another_precision_uses_every_training_step(
    name: str, dtype: torch.dtype
) -> None:
    """The cast weights of one round may reuse the memory of the last round's."""
    of = target(dtype)
    student = DECODING[name](of)
    distillation = Distillation(student, of, ForwardKL())
    (model,) = student.decoding_models
    for _ in range(6):
        with distillation.decoding_mode():
            torch.testing.assert_close(decoded(model), expected(model), rtol=0.02, atol=0.02)
        step("fused")(model.model)


@pytest.mark.parametrize("name", ADAPTED)
def test_decoding_uses_every_change_of_an_adapter(name: str) -> None:
    of = target(torch.float32)
    student = ADAPTED[name](of)
    assert isinstance(student, (DraftStudent, JointMedusaStudent))
    assert student.adapter is not None
    distillation = Distillation(student, of, ForwardKL())
    (model,) = student.decoding_models
    all_logits: list[Tensor] = []
    for seed in range(3):
        randomize(student.adapter, seed)
        with distillation.decoding_mode():
            all_logits.append(decoded(model))
            torch.testing.assert_close(all_logits[-1], expected(model), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(all_logits[0], all_logits[1], rtol=0.1, atol=0.1)
    assert not torch.allclose(all_logits[1], all_logits[2], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [*STUDENTS, *(f"medusa, joint, {kind}" for kind in KINDS)])
def test_no_student_holds_packed_layers(name: str) -> None:
    of = target(torch.float32)
    student = (
        joint(of, **KINDS[name.rpartition(", ")[2]]) if "joint" in name else STUDENTS[name](of)
    )
    assert has_packed_layers(of.model), "the target, which does not learn, stays as fast as it was"
    assert not has_packed_layers(student.module)


def test_packed_layers_are_not_trained() -> None:
    of = target(torch.float32)
    student = draft(of)
    pack_linear_layers(student.module, True)
    with pytest.raises(AssertionError, match="packed layers are copies and cannot train"):
        Distillation(student, of, ForwardKL())
