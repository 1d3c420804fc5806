"""The transformers library's Trainer around a distillation: its loop, precision, checkpoints and devices; ours the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from specresearch.training.corpus import Mix
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.examples import Example, collate

WEIGHTS = "student.safetensors"
IGNORED = -100
Log = Callable[[int, Mapping[str, Any]], None]


class TrainingStoppedError(RuntimeError):
    """Training cannot go on; what was saved before is as it was."""


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast. batch_size: examples of one pass on one device. precision: float32, or bfloat16 by autocast.

    Raises ValueError for settings that cannot be.
    """

    steps: int = 1000
    batch_size: int = 8
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    schedule: str = "cosine"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: str = "float32"
    seed: int = 0
    log_every: int = 20
    evaluate_every: int = 200
    save_every: int = 200
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "accumulate",
            "log_every",
            "evaluate_every",
            "save_every",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name)} must be at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"train.learning_rate={self.learning_rate} must be above 0")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"train.precision={self.precision!r} is unknown; choose float32 or bfloat16")

    def arguments(self, folder: Path, is_cpu: bool, progress: bool) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(folder),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulate,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            lr_scheduler_type=self.schedule,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            bf16=self.precision == "bfloat16",
            seed=self.seed,
            logging_steps=self.log_every,
            save_steps=self.save_every,
            save_total_limit=self.keep_checkpoints,
            use_cpu=is_cpu,
            report_to="none",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            disable_tqdm=not progress,
            logging_nan_inf_filter=False,
            ddp_find_unused_parameters=True,
        )


class _Schedule(Dataset[Example]):
    """The first examples of a mix, by position."""

    def __init__(self, mix: Mix, num_examples: int) -> None:
        self.mix, self.num_examples = mix, num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, position: int) -> tuple[int, Example]:
        return position, self.mix[position]


def _collate(drawn: Sequence[tuple[int, Example]]) -> dict[str, Tensor]:
    """labels: only counted, by the library, to weigh the batches of an optimiser step."""
    batch = collate([example for _, example in drawn])
    labels = batch["token_ids"].masked_fill(~batch["loss_mask"], IGNORED)
    return {**batch, "labels": labels, "positions": torch.tensor([position for position, _ in drawn])}


class DistillTrainer(Trainer):
    """Trains `distillation.module` on a mix, in its order.

    log: called with the step and values, every `log_every` steps and at every evaluation. evaluation: of the student, every
    `evaluate_every` steps and at the end; None: never. save: writes the finished student into a folder.
    """

    def __init__(
        self,
        distillation: Distillation,
        mix: Mix,
        settings: TrainSettings,
        folder: Path,
        *,
        log: Log,
        evaluation: Evaluation | None = None,
        progress: bool = False,
    ) -> None:
        arguments = settings.arguments(folder, distillation.target.device.type == "cpu", progress)
        per_step = settings.batch_size * settings.accumulate * arguments.world_size
        super().__init__(
            model=distillation,
            args=arguments,
            train_dataset=_Schedule(mix, settings.steps * per_step),
            data_collator=_collate,
            callbacks=[_Evaluate(distillation, evaluation, settings, log)],
        )
        self.distillation, self.record = distillation, log
        self.model_accepts_loss_kwargs = True

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)  # pyright: ignore[reportArgumentType]

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        positions = inputs["positions"].tolist()
        loss = model(inputs["token_ids"], inputs["loss_mask"], num_items_in_batch)
        if not torch.isfinite(loss):
            raise TrainingStoppedError(
                f"the loss is {float(loss)} at step {self.state.global_step + 1}, on examples {positions} of the corpus; the "
                "last checkpoint is as it was. Lower train.learning_rate, or set train.precision=float32"
            )
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The library's figures, and our own of every drafting step since the last time."""
        values: dict[str, Any] = {name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs}
        for number, totals in sorted(self.distillation.totals.items()):
            if totals.rows:
                values[f"step_{number}/loss"] = totals.loss / totals.rows
                values[f"step_{number}/expected_acceptance"] = totals.acceptance / totals.rows
                values[f"step_{number}/greedy_agreement"] = totals.agreeing / totals.rows
        self.distillation.totals.clear()
        if "loss" in logs:
            self.record(self.state.global_step, values)
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.distillation.module, str(folder / WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_model(self.distillation.module, str(Path(resume_from_checkpoint) / WEIGHTS))


class _Evaluate(TrainerCallback):
    def __init__(
        self, distillation: Distillation, evaluation: Evaluation | None, settings: TrainSettings, log: Log
    ) -> None:
        self.distillation, self.evaluation, self.settings, self.log = distillation, evaluation, settings, log

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._evaluate(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.settings.evaluate_every == 0 or state.global_step == self.settings.steps:
            self._evaluate(state)

    def _evaluate(self, state: Any) -> None:
        if self.evaluation is None or not state.is_world_process_zero:
            return
        module = self.distillation.module
        was_training = module.training
        module.eval()
        self.log(state.global_step, self.evaluation(self.distillation.student))
        module.train(was_training)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run that is whole."""
    found = [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
