"""A copy of the target learns to exit early, and the target itself stays as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_distillation import EXAMPLES, TARGET, batch
from test_trainer import trainer
from tiny_models import letters_tokenizer

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.models.layer_view import Sublayers
from specresearch.proposers import LayerSkip
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.objectives import ForwardKL
from specresearch.training.students import EarlyExitStudent
from specresearch.training.students.build import early_exit_student

TOKENS, MASK = batch()
SKIPPED = Sublayers.behind(2, 5)


def student(**settings: Any) -> EarlyExitStudent:
    return early_exit_student(LayerSkip(2), TARGET, [], **settings)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.forward_whole(TOKENS, want_logits=True).logits


def test_training_lowers_both_losses_and_leaves_the_target(tmp_path: Path) -> None:
    learner = student()
    original = logits(TARGET)
    assert torch.equal(logits(learner.backbone), original)
    rows: list[dict[str, Any]] = []
    distill_trainer, _ = trainer(
        learner,
        tmp_path,
        {"steps": 12, "learning_rate": 0.01},
        log=lambda _, values: rows.append(dict(values)),
    )
    distill_trainer.run()
    assert rows[0]["backbone/loss"] == pytest.approx(0, abs=1e-9), "it begins as the target"
    assert rows[-1]["exit/loss"] < 0.7 * rows[0]["exit/loss"]
    assert rows[-1]["backbone/loss"] < max(row["backbone/loss"] for row in rows)
    assert torch.equal(logits(TARGET), original)
    assert not torch.equal(logits(learner.backbone), original)


@pytest.mark.parametrize("exit_weight", [1.0, 0.25])
def test_the_loss_adds_those_of_the_exit_and_the_last_layer(exit_weight: float) -> None:
    learner = student(exit_weight=exit_weight)
    with torch.no_grad():
        for weight in learner.trained:
            weight *= 1.1
    distillation = Distillation(learner, TARGET, ForwardKL(), chunk_rows=7)
    loss = distillation(TOKENS, MASK).item()
    log_p = logits(TARGET).log_softmax(-1)
    expected = 0.0
    for model, weight in ((learner.exit, exit_weight), (learner.backbone, 1.0)):
        log_q = logits(model).log_softmax(-1)
        distances = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none")
        expected += weight * float(distances.sum(-1)[:, :-1][MASK[:, 1:]].sum())
    assert loss == pytest.approx(expected / int(MASK.sum()))


def test_decoding_drafts_as_predicted(caplog: pytest.LogCaptureFixture) -> None:
    learner = student()
    with Distillation(learner, TARGET, ForwardKL()).decoding_mode():
        metrics = Evaluation(
            TARGET, EXAMPLES, text_temperature=1.0, num_draft_tokens=2, max_new_tokens=12
        )(learner)
    for temperature in ("t0", "t1"):
        assert metrics[f"{temperature}/mean_acceptance_length"] > 1
    assert metrics["backbone/greedy_agreement"] == 1
    assert not caplog.records


def test_a_saved_target_names_what_it_does_without(tmp_path: Path) -> None:
    learner = student()
    learner.backbone.tokenizer = letters_tokenizer()
    learner.save(str(tmp_path), {"steps": 1})
    loaded = CausalLM.from_pretrained(str(tmp_path / "backbone"), dtype="float64", device="cpu")
    assert LayerSkip().skipped_of(loaded) == SKIPPED
    assert LayerSkip(4).skipped_of(loaded) == Sublayers.behind(4, 5)
    prompts = [[1, 2, 3], [4]]
    plain = Engine(loaded).generate_all(prompts, SamplingParams(max_new_tokens=8))
    drafted = Engine(loaded, LayerSkip(num_draft_tokens=3)).generate_all(
        prompts, SamplingParams(max_new_tokens=8)
    )
    assert [o.token_ids for o in plain] == [o.token_ids for o in drafted]
