"""The transformers Trainer around a distillation."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer

from specresearch.models.memory import peak_bytes
from specresearch.training.callbacks import CUSTOM_RATE, DistillCallback, Log
from specresearch.training.checkpoints import STUDENT_WEIGHTS, TRAINER_STATE
from specresearch.training.corpus import Mix
from specresearch.training.corpus.examples import Example
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.mix_dataset import MixDataset, check_single_writer, collate_drawn
from specresearch.training.progress import TokenProgress
from specresearch.training.train_settings import TrainSettings

MAX_LISTED_ROWS = 16


class TrainingStoppedError(RuntimeError):
    """Training cannot continue; earlier checkpoints are intact."""


class DistillTrainer(Trainer):
    """Trains `distillation.module` on a mix, in its order, batch by batch across processes.

    Examples are drawn only for the current optimizer step, so the student's text is written with
    its current weights, in resumed runs as well.

    Args:
        log: Called by the first process, at each log, checkpoint and evaluation.
        evaluation: Runs before the first step, every `evaluate_every` steps and after the last.
        features: Cached target states at `distillation.layers`.
        shows_progress: Shows how far training is, on stderr.
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
        features: FeatureCache | None = None,
        shows_progress: bool = False,
    ) -> None:
        device = distillation.target.device
        arguments = settings.arguments(folder, device, distillation.student.trains_in_stages)
        per_step = settings.batch_size * settings.accumulate * arguments.world_size
        self.examples = MixDataset(mix, settings.steps * per_step, distillation)
        check_single_writer(self.examples.uses_student, arguments.world_size)
        self.distillation = distillation
        self.settings = settings
        self.record = log
        self.shows_progress = shows_progress
        self.callback = DistillCallback(
            distillation, evaluation, settings, log, check_weights=self._check_weights
        )
        super().__init__(
            model=distillation,
            args=arguments,
            train_dataset=self.examples,
            data_collator=partial(collate_drawn, features=features),
            callbacks=[self.callback],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True  # makes the library count the tokens to predict
        self._step_rows: list[str] = []
        self._last_batch: dict[str, Any] = {}

    def run(self, checkpoint: Path | None = None) -> None:
        """Train to the end, from a checkpoint if given, unless loss or gradients are not finite."""
        num_done = 0
        if checkpoint is not None:
            num_done = json.loads((checkpoint / TRAINER_STATE).read_text())["global_step"]
        progress = TokenProgress(
            "training", self.settings.steps, "steps", num_done, enabled=self.shows_progress
        )
        self.callback.progress = progress
        try:
            with progress:
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"training ran out of GPU memory at step {self.state.global_step + 1}; lower "
                "train.batch_size and raise train.accumulate by as much, or lower corpus.max_len"
            ) from error

    def get_train_dataloader(self) -> DataLoader[Example]:
        return self.examples.loader(
            self.settings.batch_size,
            process=self.args.process_index,
            num_processes=self.args.world_size,
            collate_fn=self.data_collator,
        )

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Create the library's optimizer, with separate groups for custom learning rates."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new:
            for parameters, rate in self.distillation.student.custom_rates:
                _split_groups(optimizer, set(map(id, parameters)), rate)
        return optimizer

    @property
    def _groups(self) -> list[dict[str, Any]]:
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        return self.optimizer.param_groups

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore everything but learning rates, which `force` may have changed."""
        schedule = self.lr_scheduler
        rates = [group["initial_lr"] for group in self._groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not isinstance(schedule, LambdaLR):
            return
        schedule.base_lrs = rates
        for group, rate, factor in zip(self._groups, rates, schedule.lr_lambdas, strict=True):
            group["initial_lr"] = rate
            group["lr"] = rate * factor(schedule.last_epoch)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        self._step_rows += inputs["rows"]
        self._last_batch = inputs
        self.callback.step_tokens += inputs["num_tokens"]
        loss = model(**_of_loss(inputs), num_predicted=num_items_in_batch)
        if not torch.isfinite(loss):  # sync
            step = self.state.global_step + 1
            _stop(f"the loss is {loss.item()} at step {step}", inputs["rows"])
        return loss * self.accelerator.num_processes  # undoes the average over processes

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        value = torch.as_tensor(norm)
        if not torch.isfinite(value):  # sync
            step = self.state.global_step + 1
            _stop(f"the norm of the gradients is {value.item()} at step {step}", self._step_rows)
        self._step_rows = []
        return norm

    def _check_weights(self) -> None:
        """Stop if the last step made the weights give a non-finite loss on its own batch."""
        batch = self._last_batch
        with self.distillation.evaluation_mode():
            loss = self.distillation(**_of_loss(batch))
        if not torch.isfinite(loss):  # sync
            step = self.state.global_step
            _stop(f"the loss is {loss.item()} after step {step}", batch["rows"])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the library's metrics and those of each drafting step, over all processes."""
        totals = self.distillation.pop_totals()
        if "loss" in logs:
            keys = ("loss", "grad_norm", "learning_rate")
            metrics: dict[str, Any] = {key: logs[key] for key in keys if key in logs}
            device = self.args.device
            num_tokens, seconds = self.callback.pop_throughput()
            num_tokens = self._sum_over_processes(torch.tensor(num_tokens, device=device))
            for name, row in totals.items():
                totals[name] = self._sum_over_processes(row.to(device))
            metrics |= self.distillation.metrics(totals) | self._custom_rate()
            metrics["tokens_per_second"] = int(num_tokens) / seconds
            metrics["peak_memory_gb"] = peak_bytes(device) / 1e9
            if self.is_world_process_zero():
                self.record(self.state.global_step, metrics)
        super().log(logs, start_time)

    def _custom_rate(self) -> dict[str, float]:
        """Return the scheduled custom rate; like the library's, it is the next step's."""
        for group in self._groups:
            if CUSTOM_RATE in group:
                rate = group["lr"] * self.distillation.student.rate_scale
                return {"own_learning_rate": rate}
        return {}

    def _sum_over_processes(self, counts: Tensor) -> Tensor:
        total = self.accelerator.reduce(counts, "sum")
        assert isinstance(total, Tensor)
        return total

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file(self.distillation.state(), folder / STUDENT_WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        file = Path(resume_from_checkpoint) / STUDENT_WEIGHTS
        self.distillation.load_state(load_file(file), str(file))


def _of_loss(batch: dict[str, Any]) -> dict[str, Any]:
    """Return what the loss depends on."""
    return {name: batch[name] for name in ("token_ids", "loss_mask", "states", "peaks")}


def _split_groups(optimizer: torch.optim.Optimizer, chosen: set[int], rate: float) -> None:
    """Move parameters, chosen by id, to groups with a learning rate of their own."""
    for group in list(optimizer.param_groups):
        moved = [parameter for parameter in group["params"] if id(parameter) in chosen]
        group["params"] = [
            parameter for parameter in group["params"] if id(parameter) not in chosen
        ]
        if moved:
            optimizer.add_param_group({**group, "params": moved, "lr": rate, CUSTOM_RATE: True})


def _stop(reason: str, rows: Sequence[str]) -> None:
    listed = ", ".join(rows[:MAX_LISTED_ROWS])
    if len(rows) > MAX_LISTED_ROWS:
        listed += f" and {len(rows) - MAX_LISTED_ROWS} more"
    raise TrainingStoppedError(f"{reason}, on {listed}")
