"""Only adapters train, and merging them into plain weights gives the same model."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from test_distillation import TARGET, batch, draft, target
from test_trainer import SETTINGS, Few, trainer
from tiny_models import build
from torch import Tensor, nn

from specresearch import CausalLM
from specresearch.models import packed
from specresearch.proposers import DraftModel
from specresearch.training.checkpoints import STUDENT_WEIGHTS
from specresearch.training.distillation import Distillation
from specresearch.training.lora import Adapter, Lora
from specresearch.training.memory_forecast import MemoryForecast
from specresearch.training.objectives import ForwardKL
from specresearch.training.students import DraftStudent
from specresearch.training.students.build import draft_student

pytestmark = pytest.mark.filterwarnings("ignore:the target is .* times the draft:UserWarning")
TOKENS = batch()[0]


def student(of: CausalLM = TARGET, **settings: Any) -> DraftStudent:
    model = build("llama", seed=2, num_hidden_layers=1, dtype=of.dtype)
    lora = {"rank": 4, "alpha": 8.0} | settings
    return draft_student(DraftModel(CausalLM(model, max_len=of.max_len)), of, [], lora=lora)


@torch.no_grad()
def logits(model: CausalLM) -> Tensor:
    return model.forward_whole(TOKENS, want_logits=True).logits


def randomize(adapter: Adapter, seed: int = 0) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in adapter.parameters:
            weight.normal_(std=0.3)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox", "qwen3_moe"])
def test_merged_weights_give_the_adapted_model(architecture: str) -> None:
    model = CausalLM(build(architecture))
    before, weights = (
        logits(model),
        {name: w.detach().clone() for name, w in model.model.named_parameters()},
    )
    adapter = Adapter(model.model, Lora(rank=4))
    assert torch.equal(logits(model), before), "a new adapter changes nothing"
    randomize(adapter)
    adapted = logits(model)
    assert (adapted - before).norm() > 0.05 * before.norm()
    with adapter.merged():
        assert dict(model.model.named_parameters()).keys() == weights.keys()
        torch.testing.assert_close(
            logits(model), adapted, rtol=1e-6, atol=1e-6
        )  # norms run in float32
    assert torch.equal(logits(model), adapted)
    with torch.no_grad():
        for weight in adapter.parameters:
            weight.zero_()
    assert torch.equal(logits(model), before), "its own weights are as they were"


def test_only_adapters_train(tmp_path: Path) -> None:
    learner = student(dropout=0.1)
    base = {
        name: w.detach().clone()
        for name, w in learner.module.named_parameters()
        if "lora_" not in name
    }
    distill_trainer, rows = trainer(learner, tmp_path, {"steps": 25, "learning_rate": 0.02})
    distill_trainer.run()
    assert rows[-1][1]["loss"] < 0.9 * rows[0][1]["loss"]
    after = dict(learner.module.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in base.items())
    assert all(weight.requires_grad == ("lora_" in name) for name, weight in after.items())
    stored = load_file(tmp_path / "checkpoint-25" / STUDENT_WEIGHTS)
    assert len(stored) == 14
    assert all("lora_" in name for name in stored)


def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    """Including its dropout."""
    settings = {"steps": 4, "learning_rate": 0.02, "save_every": 2, "schedule": "linear"}
    results = []
    for checkpoint in (None, tmp_path / "checkpoint-2"):
        learner = student(dropout=0.2)
        distill_trainer, rows = trainer(learner, tmp_path, settings)
        distill_trainer.run(checkpoint)
        results.append(
            (rows[-1][1]["loss"], [weight.detach().clone() for weight in learner.trained])
        )
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft's own
def test_a_saved_draft_has_plain_weights_and_its_adapter_beside_them(tmp_path: Path) -> None:
    learner = student(targets=["q_proj", "down_proj"])
    assert learner.adapter is not None
    assert sorted(learner.adapter.layers) == [
        "model.layers.0.mlp.down_proj",
        "model.layers.0.self_attn.q_proj",
    ]
    randomize(learner.adapter)
    adapted = logits(learner.draft)
    with Distillation(learner, TARGET, ForwardKL()).decoding_mode():
        learner.save(str(tmp_path), {"steps": 1})
    kind: Any = type(learner.draft.model)
    loaded = CausalLM(kind.from_pretrained(tmp_path, dtype=torch.float64))
    torch.testing.assert_close(logits(loaded), adapted, rtol=1e-6, atol=1e-6)
    untrained = build("llama", seed=2, num_hidden_layers=1)
    beside: Any = PeftModel.from_pretrained(untrained, str(tmp_path / "adapter"))
    torch.testing.assert_close(
        logits(CausalLM(beside.base_model.model)), adapted, rtol=1e-6, atol=1e-6
    )


def test_frozen_weights_stay_in_sixteen_bits() -> None:
    of = target(torch.bfloat16)
    learner = student(of)
    distillation = Distillation(learner, of, ForwardKL())
    distillation(*batch()).backward()
    assert all(
        weight.dtype == torch.float32 and weight.grad is not None for weight in learner.trained
    )
    others = [weight for name, weight in learner.module.named_parameters() if "lora_" not in name]
    assert all(weight.dtype == torch.bfloat16 and weight.grad is None for weight in others)
    trained = sum(weight.nbytes for weight in learner.trained)
    forecast = MemoryForecast.measure(distillation)
    assert (forecast.gradients, forecast.optimizer) == (trained, 2 * trained)
    with distillation.decoding_mode():
        assert {weight.dtype for weight in learner.module.parameters()} == {torch.bfloat16}


def test_formerly_packed_layers_decode_with_the_latest_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "SMALLEST_WEIGHT", 0)
    of = target(torch.float32)
    learner, reference = student(of), student(of)
    assert learner.adapter is not None
    assert reference.adapter is not None
    kinds = {type(layer.get_base_layer()) for layer in learner.adapter.layers.values()}
    assert kinds == {nn.Linear}
    distillation = Distillation(learner, of, ForwardKL())
    for seed in range(3):
        randomize(learner.adapter, seed)
        randomize(reference.adapter, seed)
        with distillation.decoding_mode():
            torch.testing.assert_close(
                logits(learner.draft), logits(reference.draft), rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "lora.rank=0 must be at least 1"),
        ({"alpha": 0.0}, "lora.alpha=0.0 must be above 0"),
        ({"dropout": 1.0}, r"lora.dropout=1.0 must lie in \[0, 1\)"),
        ({"targets": "q_proj"}, r"lora.targets='q_proj' must be a list such as \[q_proj, v_proj\]"),
        (
            {"targets": ["query"]},
            r"\['query'\] do not fit LlamaForCausalLM; choose from down_proj, gate_proj, k_proj",
        ),
        ({"targets": ["q_proj", "lm_head"]}, "include the LM head"),
        ({"rnk": 4}, "student.lora has no 'rnk'; there are: rank, alpha, dropout, targets"),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        student(**settings)


def test_a_student_without_adaptable_layers_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = DraftModel(CausalLM(build("llama", seed=2, num_hidden_layers=1), max_len=60))
    with pytest.raises(ValueError, match=r"student.from_scratch=true discards"):
        draft_student(proposer, TARGET, [], lora={}, from_scratch=True)
    quantised = build("llama")
    quantised.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(
        torch.zeros((24, 16), dtype=torch.int8), requires_grad=False
    )
    with pytest.raises(
        ValueError, match=r"cannot be merged into model.layers.0.mlp.up_proj, which is quantized"
    ):
        Adapter(quantised, Lora())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"adapters need peft: pip install 'specresearch\[lora\]'"):
        student()


def test_a_checkpoint_of_another_drafter_is_rejected(tmp_path: Path) -> None:
    distill_trainer, _ = trainer(student(), tmp_path, {"steps": 1})
    distill_trainer.run()
    for other in (student(rank=2), draft(TARGET)):
        again, _ = trainer(other, tmp_path, SETTINGS | {"steps": 2}, source=Few([]))
        with pytest.raises(
            ValueError, match=r"student.safetensors is of another drafter: it holds"
        ):
            again.run(tmp_path / "checkpoint-1")
