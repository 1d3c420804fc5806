"""What happens between the optimiser steps of a distillation: its schedule, evaluations, checkpoints, and the time it takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.examples import Example, collate
from specresearch.training.train_settings import TrainSettings

OWN_RATE = "own_rate"  # marks groups of the optimiser
Log = Callable[[int, Mapping[str, Any]], None]


def show_nothing(units: int, tokens: int) -> None:
    pass


class Flow(TrainerCallback):
    """Every checkpoint closes a line of the log, so that a resumed run logs the same lines."""

    def __init__(
        self,
        distillation: Distillation,
        evaluation: Evaluation | None,
        settings: TrainSettings,
        log: Log,
        check_weights: Callable[[], None],
    ) -> None:
        self.distillation, self.evaluation, self.settings, self.log = (
            distillation,
            evaluation,
            settings,
            log,
        )
        self.check_weights = check_weights
        self.advance: Callable[[int, int], None] = show_nothing
        self.num_tokens = 0  # of this step so far
        self._begin = 0.0
        self._speed = 0, 0.0

    def take_speed(self) -> tuple[int, float]:
        """Tokens of this process and seconds, in the steps since the last call; without drawing text and without evaluations."""
        taken, self._speed = self._speed, (0, 0.0)
        return taken

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._evaluate(state)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        student = self.distillation.student
        student.begin(state.global_step / self.settings.steps)
        for group in optimizer.param_groups:
            if OWN_RATE in group:
                group["lr"] *= student.own_share  # the schedule sets it anew at every step
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        num_tokens, seconds = self._speed
        self._speed = num_tokens + self.num_tokens, seconds + time.perf_counter() - self._begin
        self.advance(1, self.num_tokens)
        self.num_tokens = 0
        step, settings = state.global_step, self.settings
        is_last = step == settings.steps
        evaluates = step % settings.evaluate_every == 0 or is_last
        control.should_save = step % settings.save_every == 0 or is_last
        if evaluates or control.should_save:
            self.check_weights()
        if evaluates:
            self._evaluate(state)
        control.should_log = step % settings.log_every == 0 or control.should_save

    def _evaluate(self, state: Any) -> None:
        if self.evaluation is not None and state.is_world_process_zero:
            with self.distillation.as_decoded() as student:
                self.log(
                    state.global_step,
                    self.evaluation(student) | self._on_heldout(self.evaluation.examples),
                )

    def _on_heldout(self, texts: Sequence[Example]) -> dict[str, float]:
        size, device = self.settings.batch_size, self.distillation.target.device
        with self.distillation.apart():
            for begin in range(0, len(texts), size):
                batch = collate(texts[begin : begin + size])
                self.distillation(batch["token_ids"].to(device), batch["loss_mask"].to(device))
            figures = self.distillation.figures(self.distillation.take_sums())
        return {f"heldout/{name}": value for name, value in figures.items()}
