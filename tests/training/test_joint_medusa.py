"""Medusa-2 trains the heads first, then a copy of the target with them."""

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_distillation import EXAMPLES, TARGET, batch
from test_trainer import trainer
from tiny_models import VOCAB, letters_tokenizer
from torch import Tensor

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.models.medusa import MedusaHeads
from specresearch.proposers import Medusa
from specresearch.training.checkpoints import STUDENT_WEIGHTS
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.memory_forecast import MemoryForecast
from specresearch.training.objectives import CrossEntropy, ForwardKL
from specresearch.training.students.build import medusa_student
from specresearch.training.students.joint_medusa import JointMedusaStudent
from specresearch.training.train_settings import TrainSettings

TOKENS = batch()[0]
LORA = {"rank": 4, "alpha": 8.0}
KINDS: dict[str, dict[str, Any]] = {"all weights": {}, "adapters": {"lora": LORA}}


def student(settings: dict[str, Any] | None = None, **heads: Any) -> JointMedusaStudent:
    joint = {"warmup": 0.5, "backbone_learning_rate": 1e-3} | (settings or {})
    learner = medusa_student(Medusa(), TARGET, [], **{"num_heads": 2, "joint": joint} | heads)
    assert isinstance(learner, JointMedusaStudent)
    return learner


@torch.no_grad()
def logits(model: CausalLM) -> Tensor:
    return model.forward_whole(TOKENS, want_logits=True).logits


def copies(weights: list[Any]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]


def disturb(learner: JointMedusaStudent, spread: float = 0.3) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in learner.trained[len(list(learner.heads.parameters())) :]:
            weight += spread * weight.abs().mean().clamp(min=0.3) * torch.randn_like(weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own_lm_head", [True, False])
def test_heads_train_first_and_the_target_never_changes(
    tmp_path: Path, kind: str, own_lm_head: bool
) -> None:
    learner = student({"warmup": 1 / 3} | KINDS[kind], own_lm_head=own_lm_head)
    original, target_weights = logits(TARGET), copies(list(TARGET.model.parameters()))
    assert torch.equal(logits(learner.backbone), original)
    heads, backbone = (
        list(learner.heads.parameters()),
        learner.trained[len(list(learner.heads.parameters())) :],
    )
    weights_by_step = [(copies(heads), copies(backbone))]

    def log(step: int, values: Any) -> None:
        rows.append(dict(values))
        weights_by_step.append((copies(heads), copies(backbone)))

    rows: list[dict[str, Any]] = []
    distill_trainer, _ = trainer(learner, tmp_path, {"steps": 6, "learning_rate": 0.01}, log=log)
    distill_trainer.run()
    for step, (before, after) in enumerate(pairwise(weights_by_step)):
        assert not all(map(torch.equal, before[0], after[0]))
        assert all(map(torch.equal, before[1], after[1])) == (step <= 2), (
            "its learning rate rises from 0"
        )
    assert ["backbone/loss" in row for row in rows] == [False, False, True, True, True, True]
    assert rows[2]["backbone/loss"] == pytest.approx(0, abs=1e-9), "it begins as the target"
    assert rows[5]["backbone/expected_acceptance"] < 1
    assert all(map(torch.equal, target_weights, TARGET.model.parameters()))
    assert torch.equal(logits(TARGET), original)
    assert not torch.equal(logits(learner.backbone), original)


def test_the_loss_adds_those_of_the_heads_and_the_backbone() -> None:
    """Both are measured against the original target."""
    learner = student()
    disturb(learner)
    distillation = Distillation(learner, TARGET, ForwardKL(), chunk_rows=7)
    token_ids, mask = batch()
    frozen = logits(TARGET).log_softmax(-1)
    with torch.no_grad():
        states = learner.backbone.forward_whole(token_ids, (-1,)).hidden[0]
        heads = learner.heads(states, torch.nn.Identity()).log_softmax(-1)
        backbone_log_q = learner.backbone.readout(states).log_softmax(-1)
    apart = torch.nn.functional.kl_div
    expected = {"heads": 0.0, "backbone": 0.0}
    for b, end in mask.nonzero().tolist():
        expected_log_p = frozen[b, end - 1]
        expected["backbone"] += float(
            apart(backbone_log_q[b, end - 1], expected_log_p, log_target=True, reduction="sum")
        )
        for i in range(2):
            if end - i - 2 >= 0:
                distance = apart(
                    heads[b, end - i - 2, i], expected_log_p, log_target=True, reduction="sum"
                )
                expected["heads"] += 0.8**i * float(distance)
    for done, weights in (
        (0.25, (1.0, 0.0)),
        (0.5, (0.0, 1.0)),
        (0.75, (0.1, 1.0)),
        (0.999, (0.1996, 1.0)),
    ):
        learner.start_step(done)
        total = weights[0] * expected["heads"] + weights[1] * expected["backbone"]
        assert float(distillation(token_ids, mask).detach()) == pytest.approx(
            total / int(mask.sum()), rel=1e-6
        )


def test_cross_entropy_trains_on_the_text() -> None:
    learner = student({"warmup": 0.0})
    learner.start_step(0.0)
    token_ids, mask = batch()
    loss = float(Distillation(learner, TARGET, CrossEntropy())(token_ids, mask).detach())
    log_p, positions = logits(TARGET).log_softmax(-1), mask.nonzero().tolist()
    of_backbone = -sum(float(log_p[b, end - 1, token_ids[b, end]]) for b, end in positions) / len(
        positions
    )
    of_heads = -sum(
        0.8**i
        * float(log_p[b, end - i - 2, token_ids[b, end]])  # new heads say what the target says
        for b, end in positions
        for i in range(2)
        if end - i - 2 >= 0
    )
    assert loss == pytest.approx(of_backbone + 0.2 * of_heads / len(positions), rel=1e-6)


def test_the_backbone_has_its_own_learning_rate(tmp_path: Path) -> None:
    learner = student()
    distill_trainer, _ = trainer(learner, tmp_path, {"steps": 4, "learning_rate": 0.01})
    backbone = set(map(id, learner.backbone.model.parameters()))
    optimizer: Any = distill_trainer.create_optimizer()
    rates = {
        id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]
    }
    assert len(rates) == len(learner.trained)
    assert {rate for key, rate in rates.items() if key in backbone} == {1e-3}
    assert {rate for key, rate in rates.items() if key not in backbone} == {0.01}
    assert distill_trainer.create_optimizer() is optimizer
    assert len(optimizer.param_groups) == 4
    for done, share in ((0.2, 0.0), (0.5, 0.0), (0.6, 0.2), (1.0, 1.0)):
        for group in optimizer.param_groups:
            group["lr"] = 1.0
        distill_trainer.state.global_step = round(100 * done)
        distill_trainer.callback.settings = TrainSettings(steps=100)
        distill_trainer.callback.on_step_begin(
            None, distill_trainer.state, None, optimizer=optimizer
        )
        rates = {
            id(weight): group["lr"]
            for group in optimizer.param_groups
            for weight in group["params"]
        }
        assert all(rate == pytest.approx(share) for key, rate in rates.items() if key in backbone)
        assert {rate for key, rate in rates.items() if key not in backbone} == {1.0}


def test_adapters_share_the_targets_memory() -> None:
    addresses = {weight.data_ptr() for weight in TARGET.model.parameters()}
    full, adapted = student(), student({"lora": LORA})
    assert not addresses & {weight.data_ptr() for weight in full.backbone.model.parameters()}
    assert addresses < {weight.data_ptr() for weight in adapted.backbone.model.parameters()}
    counted = [
        MemoryForecast.measure(Distillation(learner, TARGET, ForwardKL()))
        for learner in (full, adapted)
    ]
    trained_bytes = [
        sum(weight.nbytes for weight in learner.trained) for learner in (full, adapted)
    ]
    target = 8 * TARGET.num_parameters
    assert [(f.weights, f.gradients) for f in counted] == [
        (target + bytes, bytes) for bytes in trained_bytes
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, kind: str, stopped: int
) -> None:
    """Whether it is interrupted in the first stage, in the second, or between them."""
    settings = {
        "steps": 4,
        "learning_rate": 0.01,
        "save_every": 1,
        "keep_checkpoints": 9,
        "schedule": "linear",
    }
    results = []
    for checkpoint in (None, tmp_path / f"checkpoint-{stopped}"):
        learner = student(KINDS[kind])
        distill_trainer, rows = trainer(learner, tmp_path, settings)
        distill_trainer.run(checkpoint)
        results.append((rows[-1][1]["loss"], copies(learner.trained)))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))
    assert len(load_file(tmp_path / "checkpoint-1" / STUDENT_WEIGHTS)) == len(results[0][1])


def plain(model: CausalLM) -> list[tuple[int, ...]]:
    prompts = [example.token_ids[:4] for example in EXAMPLES]
    sampling = SamplingParams(max_new_tokens=12, ignore_eos=True)
    outputs = Engine(model, max_batch_size=4).generate(prompts, sampling)
    return [output.token_ids for output in sorted(outputs, key=lambda output: output.id)]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_decodes_with_the_backbone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, target_tokens = student(KINDS[kind]), plain(TARGET)
    disturb(learner)
    monkeypatch.setattr(TARGET, "tokenizer", letters_tokenizer(VOCAB))
    evaluation = Evaluation(
        TARGET, EXAMPLES, text_temperature=1.0, num_draft_tokens=2, max_new_tokens=12
    )
    distillation = Distillation(learner, TARGET, ForwardKL())
    with distillation.decoding_mode():
        figures, backbone_tokens = evaluation(learner), plain(learner.backbone)
    assert backbone_tokens != target_tokens
    decoded = letters_tokenizer(VOCAB).decode(list(backbone_tokens[0]))
    assert figures["t0/sample"].replace("|", "") == decoded
    predicted = figures["t0/predicted_mean_acceptance_length"]
    assert figures["t0/mean_acceptance_length"] == pytest.approx(predicted, rel=1e-9)
    assert 0.01 < figures["backbone/total_variation"] < 1
    assert figures["backbone/greedy_agreement"] < 1
    assert not TARGET.cache.num_bytes, "caches are freed"
    assert not learner.backbone.cache.num_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_saving_writes_a_target_and_its_heads(tmp_path: Path, kind: str) -> None:
    learner = student(KINDS[kind])
    disturb(learner)
    with Distillation(learner, TARGET, ForwardKL()).decoding_mode():
        expected = logits(learner.backbone)
        learner.save(str(tmp_path / "out"), {"steps": 1})
    model: Any = type(learner.backbone.model)
    folder = str(tmp_path / "out" / "backbone")
    loaded = CausalLM(
        model.from_pretrained(folder, dtype=torch.float64), name=folder, max_len=TARGET.max_len
    )
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-6, atol=1e-6)
    heads = MedusaHeads.from_pretrained(str(tmp_path / "out"))
    assert heads.base_model == folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heads.check_fit(loaded)
    with pytest.warns(UserWarning, match="the Medusa heads was trained for"):
        heads.check_fit(TARGET)
    assert (tmp_path / "out" / "backbone" / "adapter").exists() == (kind == "adapters")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": 1.0}, r"student.joint.warmup=1.0 must lie in \[0, 1\)"),
        ({"head_weight": 0.0}, "student.joint.head_weight=0.0 must be above 0"),
        (
            {"backbone_learning_rate": -1.0},
            "student.joint.backbone_learning_rate=-1.0 must be above 0",
        ),
        ({"warm_up": 0.1}, "student.joint has no 'warm_up'; there are: warmup, head_weight"),
        ({"lora": {"r": 4}}, "student.joint.lora has no 'r'; there are: rank"),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        student(settings)
