"""The transformers library's Trainer around a distillation: its loop, optimiser, checkpoints and processes; ours the rest."""

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer

from specresearch.training.corpus import Mix
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.examples import Example, collate
from specresearch.training.feature_cache import FeatureCache
from specresearch.training.flow import OWN_RATE, Flow, Log, show_nothing
from specresearch.training.generated import DraftGenerated
from specresearch.training.memory import peak_bytes
from specresearch.training.progress import progress
from specresearch.training.train_settings import TrainSettings

WEIGHTS, STATE = "student.safetensors", "trainer_state.json"
IGNORED = -100
MOST_ROWS = 16  # that a message names


class TrainingStoppedError(RuntimeError):
    """Training cannot go on; what was saved before is as it was."""


class _Schedule(Dataset[Example]):
    """The first examples of a mix, by position; those of a batch are drawn together."""

    def __init__(self, mix: Mix, num_examples: int, distillation: Distillation) -> None:
        self.mix, self.num_examples, self.distillation = mix, num_examples, distillation
        self.is_written_on_the_way = any(
            isinstance(source, DraftGenerated) for source in mix.sources.values()
        )
        self._rounds: set[int] = set()  # of the examples drawn last

    def __len__(self) -> int:
        return self.num_examples

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[int, Example]]:
        before, self._rounds = (
            self._rounds,
            {position // self.mix.round_size for position in positions},
        )
        writes = self.is_written_on_the_way and not self._rounds <= before
        with self.distillation.as_decoded() if writes else nullcontext():
            return [(position, self.mix[position]) for position in positions]


def _collate(
    drawn: Sequence[tuple[int, Example]], features: FeatureCache | None = None
) -> dict[str, Any]:
    """labels: only counted, by the library, to weigh the batches of an optimiser step."""
    examples = [example for _, example in drawn]
    batch = collate(examples)
    labels = batch["token_ids"].masked_fill(~batch["loss_mask"], IGNORED)
    num_tokens = sum(len(example.token_ids) for example in examples)
    states = None if features is None else features(examples)
    rows = [f"example {place} ({example.row or 'unnamed'})" for place, example in drawn]
    return {**batch, "labels": labels, "rows": rows, "num_tokens": num_tokens, "states": states}


class DistillTrainer(Trainer):
    """Trains `distillation.module` on a mix, in its order, which several processes share out batch by batch.

    Nothing is drawn from the mix before the optimiser step that needs it, so that text of the student is written with the
    weights of that moment, in a run that was resumed as in one that was not.

    log: called by the first process with the step and values, every `log_every` steps, at every checkpoint and at every
    evaluation. evaluation: of the student, before the first step, every `evaluate_every` steps and after the last; None: never.
    features: the target's states at `distillation.layers` for all examples; None: computed at every step.
    shows_progress: with a bar, if stderr is a terminal.

    Raises ValueError for text of the student in several processes.
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
        arguments = settings.arguments(
            folder, distillation.target.device, distillation.student.in_stages
        )
        per_step = settings.batch_size * settings.accumulate * arguments.world_size
        schedule = _Schedule(mix, settings.steps * per_step, distillation)
        check_writers(schedule.is_written_on_the_way, arguments.world_size)
        self.flow = Flow(distillation, evaluation, settings, log, self._check_weights)
        super().__init__(
            model=distillation,
            args=arguments,
            train_dataset=schedule,
            data_collator=partial(_collate, features=features),
            callbacks=[self.flow],
        )
        self.remove_callback(PrinterCallback)
        self.distillation, self.settings, self.record = distillation, settings, log
        self.shows_progress = shows_progress
        self.model_accepts_loss_kwargs = True  # the library then counts what is to be predicted
        self._drawn: list[str] = []  # the examples of this optimiser step
        self._batch: dict[str, Any] = {}  # the last one

    def run(self, checkpoint: Path | None = None) -> None:
        """Train to the end, from a checkpoint on if there is one.

        Raises TrainingStoppedError when loss or gradients are not finite, and MemoryError when a GPU is full.
        """
        steps = self.settings.steps
        done = (
            0 if checkpoint is None else json.loads((checkpoint / STATE).read_text())["global_step"]
        )
        bar = (
            progress("training", steps, "steps", done)
            if self.shows_progress
            else nullcontext(show_nothing)
        )
        try:
            with bar as self.flow.advance:
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"training ran out of GPU memory at step {self.state.global_step + 1}; lower train.batch_size and raise "
                "train.accumulate by as much, or lower corpus.max_len"
            ) from error

    def get_train_dataloader(self) -> DataLoader[Example]:
        """The library's own would draw a batch ahead."""
        schedule, batch_size = self.train_dataset, self.settings.batch_size
        assert isinstance(schedule, _Schedule)
        first, stride = batch_size * self.args.process_index, batch_size * self.args.world_size
        batches = [
            list(range(begin, begin + batch_size)) for begin in range(first, len(schedule), stride)
        ]
        return DataLoader(schedule, batch_sampler=batches, collate_fn=self.data_collator)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The library's, with the learning rates that the student asks for."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        for parameters, rate in self.distillation.student.own_rates if is_new else ():
            chosen = set(map(id, parameters))
            for group in list(optimizer.param_groups):
                apart = [parameter for parameter in group["params"] if id(parameter) in chosen]
                group["params"] = [
                    parameter for parameter in group["params"] if id(parameter) not in chosen
                ]
                if apart:
                    optimizer.add_param_group(
                        {**group, "params": apart, "lr": rate, OWN_RATE: True}
                    )
        return optimizer

    @property
    def _groups(self) -> list[dict[str, Any]]:
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        return self.optimizer.param_groups

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As they were, but for the learning rates, which are those of this run: `force` may have changed them."""
        schedule = self.lr_scheduler
        rates = [group["initial_lr"] for group in self._groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not isinstance(schedule, LambdaLR):
            return
        schedule.base_lrs = rates
        for group, rate, share in zip(self._groups, rates, schedule.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = rate, rate * share(schedule.last_epoch)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        self._drawn += inputs["rows"]
        self._batch = inputs
        self.flow.num_tokens += inputs["num_tokens"]
        loss = model(inputs["token_ids"], inputs["loss_mask"], num_items_in_batch, inputs["states"])
        if not torch.isfinite(loss):  # sync
            self._stop(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}", inputs["rows"]
            )
        return loss * self.accelerator.num_processes  # their gradients are averaged

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if not torch.isfinite(torch.as_tensor(norm)):  # sync
            step = self.state.global_step + 1
            self._stop(
                f"the norm of the gradients is {torch.as_tensor(norm).item()} at step {step}",
                self._drawn,
            )
        self._drawn = []
        return norm

    def _check_weights(self) -> None:
        """Before anything is saved or measured: weights that a step has ruined give no loss on the batch that they come from."""
        batch = self._batch
        with self.distillation.apart():
            loss = self.distillation(batch["token_ids"], batch["loss_mask"], None, batch["states"])
        if not torch.isfinite(loss):  # sync
            self._stop(
                f"the loss is {loss.item()} after step {self.state.global_step}", batch["rows"]
            )

    def _stop(self, what: str, rows: Sequence[str]) -> None:
        told = ", ".join(rows[:MOST_ROWS]) + (
            f" and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
        )
        raise TrainingStoppedError(f"{what}, on {told}")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The library's figures, and our own of every drafting step since the last time, over all processes."""
        sums = self.distillation.take_sums()
        if "loss" in logs:
            values: dict[str, Any] = {
                name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs
            }
            device = self.args.device
            num_tokens, seconds = self.flow.take_speed()
            num_tokens = self._over_processes(torch.tensor(num_tokens, device=device))
            values |= self.distillation.figures(
                {name: self._over_processes(row.to(device)) for name, row in sums.items()}
            )
            values |= self._own_rate()
            values["tokens_per_second"] = int(num_tokens) / seconds
            values["peak_memory_gb"] = peak_bytes(device) / 1e9
            if self.is_world_process_zero():
                self.record(self.state.global_step, values)
        super().log(logs, start_time)

    def _own_rate(self) -> dict[str, float]:
        """What the schedule gives, like the library's figure, to the parameters with a rate of their own."""
        rates = [group["lr"] for group in self._groups if OWN_RATE in group]
        return (
            {"own_learning_rate": rates[0] * self.distillation.student.own_share} if rates else {}
        )

    def _over_processes(self, counts: Tensor) -> Tensor:
        total = self.accelerator.reduce(counts, "sum")
        assert isinstance(total, Tensor)
        return total

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file(self.distillation.state(), folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        file = Path(resume_from_checkpoint) / WEIGHTS
        self.distillation.load_state(load_file(file), str(file))


def check_writers(is_written_on_the_way: bool, num_processes: int) -> None:
    """Raises ValueError for text of the student in several processes, where those that do not write would train on without it."""
    if is_written_on_the_way and num_processes > 1:
        raise ValueError(
            f"text of the student (corpus.draft) is written by one process, and there are {num_processes}; set corpus.draft=0, "
            "or use one process and raise train.accumulate"
        )


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run that is whole; its state is written last."""
    found = [path for path in folder.glob("checkpoint-*") if _is_whole(path / STATE)]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def drop_torn_checkpoints(folder: Path) -> None:
    """Delete what a kill or a full disk left of a checkpoint."""
    for path in folder.glob("checkpoint-*"):
        if not _is_whole(path / STATE):
            shutil.rmtree(path)


def _is_whole(state: Path) -> bool:
    try:
        return "global_step" in json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
