"""The trainer learns, accumulates batches exactly, and stops before it ruins the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_chunked_loss import Watch
from test_distillation import EXAMPLES, STUDENTS, TARGET, draft, target
from tiny_models import VOCAB, letters_tokenizer
from torch import Tensor

from specresearch import CausalLM
from specresearch.models.memory import peak_bytes
from specresearch.training.callbacks import Log
from specresearch.training.checkpoints import STUDENT_WEIGHTS, last_checkpoint
from specresearch.training.corpus import Mix
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.sources import Draw, ListSource, Source
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.memory_forecast import MemoryForecast
from specresearch.training.mix_dataset import check_single_writer
from specresearch.training.objectives import ForwardKL
from specresearch.training.progress import TokenProgress
from specresearch.training.students import Student
from specresearch.training.train_settings import TrainSettings
from specresearch.training.trainer import DistillTrainer, TrainingStoppedError

pytestmark = pytest.mark.filterwarnings("ignore:the target is .* times the draft:UserWarning")
SETTINGS: dict[str, Any] = {
    "warmup_steps": 0,
    "log_every": 1,
    "save_every": 100,
    "batch_size": 4,
    "schedule": "constant",
}
Rows = list[tuple[int, Mapping[str, Any]]]


class Few(ListSource):
    """Repeat a few examples forever."""

    def __init__(self, examples: list[Example]) -> None:
        self.examples = Examples(examples)


def trainer(
    student: Student,
    folder: Path,
    settings: dict[str, Any],
    *,
    of: CausalLM = TARGET,
    objective: ForwardKL | None = None,
    source: Source | None = None,
    evaluation: Evaluation | None = None,
    log: Log | None = None,
) -> tuple[DistillTrainer, Rows]:
    """Return the trainer and the rows that it logs."""
    rows: Rows = []
    distill_trainer = DistillTrainer(
        Distillation(student, of, objective or ForwardKL()),
        Mix({"fixed": (1.0, source or Few(EXAMPLES))}),
        TrainSettings(**SETTINGS | settings),
        folder,
        log=log or (lambda step, values: rows.append((step, values))),
        evaluation=evaluation,
    )
    return distill_trainer, rows


def weights(student: Student) -> list[Tensor]:
    return [weight.detach().clone() for weight in student.module.parameters()]


@pytest.mark.parametrize("name", STUDENTS)
def test_the_loss_falls_on_a_few_examples(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    distill_trainer, rows = trainer(
        STUDENTS[name](TARGET), tmp_path, {"steps": 25, "learning_rate": 0.02}
    )
    distill_trainer.run()
    assert [step for step, _ in rows] == list(range(1, 26))
    first, last = rows[0][1], rows[-1][1]
    assert last["loss"] < 0.7 * first["loss"]
    assert last["step_0/expected_acceptance"] > first["step_0/expected_acceptance"]
    assert capfd.readouterr().out == ""


def test_accumulated_batches_equal_one_large_batch(tmp_path: Path) -> None:
    """Examples differ in length, so a mean of means would differ."""
    results = []
    for batch_size, accumulate in ((4, 1), (2, 2), (1, 4)):
        student = STUDENTS["eagle3"](TARGET)
        settings = {
            "batch_size": batch_size,
            "accumulate": accumulate,
            "steps": 3,
            "learning_rate": 0.01,
        }
        distill_trainer, rows = trainer(student, tmp_path / str(batch_size), settings)
        distill_trainer.run()
        results.append((rows, weights(student)))
    for rows, trained_weights in results[1:]:
        for (_, actual), (_, reference) in zip(rows, results[0][0], strict=True):
            for key in ("loss", "grad_norm", "step_2/loss", "step_0/expected_acceptance"):
                assert actual[key] == pytest.approx(reference[key], rel=1e-6)
        torch.testing.assert_close(trained_weights, results[0][1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", STUDENTS)
def test_training_on_cached_features_gives_the_same_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, results, objective = Few(EXAMPLES), [], ForwardKL(temperature=0.7)
    for cached in (False, True):
        student = STUDENTS[name](TARGET)
        distillation, features = Distillation(student, TARGET, objective), None
        if cached:
            reduced = None if student.target_ids is None else objective
            features = FeatureCache(
                TARGET, distillation.layers, source.examples, tmp_path / "features", reduced=reduced
            )
        settings = TrainSettings(**SETTINGS | {"steps": 4, "learning_rate": 0.01, "batch_size": 3})
        rows: Rows = []

        def log(step: int, values: Mapping[str, Any], rows: Rows = rows) -> None:
            rows.append((step, values))

        mix, folder = Mix({"fixed": (1.0, source)}), tmp_path / str(cached)
        distill_trainer = DistillTrainer(
            distillation, mix, settings, folder, log=log, features=features
        )
        with monkeypatch.context() as patched:
            if cached:
                patched.setattr(TARGET, "forward_whole", None)
            if cached and student.target_ids is not None:
                patched.setattr(TARGET.model.get_output_embeddings(), "forward", None)
            distill_trainer.run()
        results.append(([values["loss"] for _, values in rows], weights(student)))
    assert results[1][0] == pytest.approx(
        results[0][0], rel=1e-6
    )  # but for rounding, where passes are batched otherwise
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-5, atol=1e-7)


def test_examples_are_drawn_in_their_own_step(tmp_path: Path) -> None:
    drawn: list[tuple[int, int]] = []

    class Watched(Few):
        def draw(self, draw: Draw) -> Example:
            drawn.append((draw.number, distill_trainer.state.global_step))
            return super().draw(draw)

    settings = {"steps": 3, "batch_size": 2, "accumulate": 2}
    distill_trainer, _ = trainer(draft(TARGET), tmp_path, settings, source=Watched(EXAMPLES))
    distill_trainer.run()
    assert drawn == [(number, number // 4) for number in range(12)]


def test_the_progress_bar_continues_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Recorded(TokenProgress):
        def __init__(self, *described: Any, enabled: bool) -> None:
            super().__init__(*described, enabled=False)
            if enabled:
                calls.append(described)

        def add(self, num_units: int, num_tokens: int) -> None:
            calls.append((num_units, num_tokens))

    monkeypatch.setattr("specresearch.training.trainer.TokenProgress", Recorded)
    num_tokens = sum(len(example.token_ids) for example in EXAMPLES)
    for steps, checkpoint in ((2, None), (3, tmp_path / "checkpoint-2")):
        distill_trainer, _ = trainer(draft(TARGET), tmp_path, {"steps": steps})
        distill_trainer.shows_progress = True
        distill_trainer.run(checkpoint)
    one = (1, num_tokens)
    assert calls == [("training", 2, "steps", 0), one, one, ("training", 3, "steps", 2), one]


class Breaking(ForwardKL):
    """Turn the loss or its gradients into NaN when `breaks` says so."""

    breaks: str = ""

    def between(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        loss = super().between(log_p, log_q)
        if self.breaks == "loss":
            return loss + torch.nan
        return loss + (log_q * 0).sum(-1).sqrt() if self.breaks == "gradients" else loss


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        ("loss", r"the loss is nan at step 3, on example 8 \(unnamed\), example 9 \(unnamed\)$"),
        (
            "gradients",
            r"the norm of the gradients is nan at step 3, on example 8 \(.*\), "
            r"example 11 \(unnamed\)$",
        ),
    ],
)
def test_a_loss_or_gradient_of_nan_stops_training_before_the_weights_change(
    tmp_path: Path, breaks: str, message: str
) -> None:
    objective, student = Breaking(), draft(TARGET)

    def log(step: int, values: Mapping[str, Any]) -> None:
        objective.breaks = breaks if step == 2 else ""

    settings = {"steps": 5, "batch_size": 2, "accumulate": 2, "save_every": 2}
    distill_trainer, _ = trainer(student, tmp_path, settings, objective=objective, log=log)
    with pytest.raises(TrainingStoppedError, match=message):
        distill_trainer.run()
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-2"
    for name, weight in load_file(checkpoint / STUDENT_WEIGHTS).items():
        assert torch.equal(weight, student.module.state_dict()[name])


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for number, state in (
        (2, '{"global_step": 2}'),
        (10, '{"global_step": 10}'),
        (12, '{"global_st'),
        (14, None),
    ):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


@pytest.mark.parametrize("name", ["draft_model", "medusa", "eagle", "eagle3"])
def test_sixteen_bit_students_learn_and_are_evaluated_as_they_decode(
    name: str, tmp_path: Path
) -> None:
    of = target(torch.bfloat16)
    of.tokenizer = letters_tokenizer(VOCAB)
    student = STUDENTS[name](of)
    evaluation = Evaluation(
        of, EXAMPLES, text_temperature=1.0, num_draft_tokens=2, max_new_tokens=6, batch_size=2
    )
    settings = {"steps": 8, "learning_rate": 0.02, "evaluate_every": 4}
    distill_trainer, rows = trainer(student, tmp_path, settings, of=of, evaluation=evaluation)
    distill_trainer.run()
    losses = [values["loss"] for _, values in rows if "loss" in values]
    assert losses[-1] < losses[0]
    assert [step for step, values in rows if "predicted/mean_acceptance_length" in values] == [
        0,
        4,
        8,
    ]
    samples = {
        str(values["t0/sample"]).replace("|", "") for _, values in rows if "t0/sample" in values
    }
    assert len(samples) == 1, "greedy decoding is lossless, whatever is drafted"
    assert {weight.dtype for weight in student.module.parameters()} == {torch.float32}
    assert {
        weight.dtype for weight in load_file(tmp_path / "checkpoint-8" / STUDENT_WEIGHTS).values()
    } == {torch.float32}


def test_an_evaluation_without_text_or_tokens_is_rejected() -> None:
    with pytest.raises(ValueError, match="no held-out text to evaluate on"):
        Evaluation(TARGET, [Example([1, 2], [False, False])], text_temperature=1.0)
    with pytest.raises(ValueError, match=r"evaluation.max_new_tokens=0 must be at least 1"):
        Evaluation(TARGET, EXAMPLES, text_temperature=1.0, max_new_tokens=0)


def test_the_memory_forecast_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    distillation = Distillation(draft(TARGET), TARGET, ForwardKL(), chunk_rows=16)
    forecast = MemoryForecast.measure(distillation, batch_size=3, num_tokens=20)
    trained = 8 * sum(weight.numel() for weight in distillation.module.parameters())
    assert (forecast.gradients, forecast.optimizer) == (trained, 2 * trained)
    assert forecast.weights == trained + 8 * TARGET.num_parameters
    assert forecast.loss == 12 * 4 * 16 * VOCAB
    assert forecast.in_use > 1e8  # the process and its libraries
    in_use = f"{forecast.in_use / 1e9:.2f}"
    summary = forecast.check(TARGET.device)
    assert f"memory, in GB: in use {in_use}, weights of 0.00 included; in addition gr" in summary
    assert f"activations up to 0.00; peak up to {in_use}; free" in summary
    assert peak_bytes(TARGET.device) > 1e8
    monkeypatch.setattr(
        "specresearch.training.memory_forecast.available_bytes",
        lambda device: forecast.additional - 1,
    )
    with pytest.raises(MemoryError, match="training does not fit"):
        forecast.check(TARGET.device)


@pytest.mark.parametrize("name", ["draft_model", "eagle3", "medusa"])
def test_short_texts_tell_what_long_batches_save(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast of the longest batches runs none, or it would need the memory to refuse them."""
    distillation = Distillation(STUDENTS[name](TARGET), TARGET, ForwardKL(), chunk_rows=8)
    direct = MemoryForecast.measure(distillation, 4, 60).activations
    lengths: list[int] = []
    forward_whole = TARGET.forward_whole

    def spy(token_ids: torch.Tensor, *rest: Any) -> Any:
        lengths.append(token_ids.numel())
        return forward_whole(token_ids, *rest)

    monkeypatch.setattr(TARGET, "forward_whole", spy)
    monkeypatch.setattr("specresearch.training.memory_forecast.SHORT_TEXTS", (6, 12, 18))
    forecast = MemoryForecast.measure(distillation, 4, 60).activations
    assert forecast == pytest.approx(direct, rel=0.02)
    assert max(lengths) == 2 * 18


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_sharded_training_is_rejected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(ValueError, match=f"ACCELERATE_USE_{name} is set, .* start with torchrun"):
        TrainSettings().arguments(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize(("rows", "num_tokens"), [(1, 60), (6, 30)])
def test_peak_memory_is_as_forecast(name: str, rows: int, num_tokens: int) -> None:
    """Over a forward and backward pass, counting every live tensor."""
    distillation = Distillation(STUDENTS[name](TARGET), TARGET, ForwardKL(), chunk_rows=8)
    forecast = MemoryForecast.measure(distillation, rows, num_tokens)
    token_ids = torch.randint(VOCAB, (rows, num_tokens))
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    mask[:, 0] = False
    with Watch() as watch:
        distillation(token_ids, mask).backward()
    predicted = (
        forecast.activations + forecast.gradients + 2 * forecast.loss
    )  # chunks are in float64 here
    assert 0.5 < predicted / (8 * watch.peak) < 1.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 0}, "train.accumulate=0 must be at least 1"),
        ({"learning_rate": 0.0}, "train.learning_rate=0.0 must be above 0"),
        ({"weight_decay": -0.1}, "train.weight_decay=-0.1 must be 0 or above"),
        ({"schedule": "wavy"}, "train.schedule='wavy' is unknown; choose one of linear, cosine"),
        (
            {"precision": "half"},
            "train.precision='half' is unknown; choose one of auto, float32, bfloat16",
        ),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainSettings(**settings)


def test_settings_that_a_process_cannot_serve_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the target is on meta, and this process trains on "):
        TrainSettings().arguments(tmp_path, torch.device("meta"))
    with pytest.raises(
        ValueError, match=r"is written by one process, and there are 2; set corpus.draft=0"
    ):
        check_single_writer(True, 2)
    check_single_writer(True, 1)
    check_single_writer(False, 2)
