"""Evaluation, checkpoints and timing between optimizer steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from specresearch.clock import Clock
from specresearch.training.corpus.examples import Example, collate
from specresearch.training.distillation import Distillation
from specresearch.training.evaluation import Evaluation
from specresearch.training.progress import TokenProgress
from specresearch.training.train_settings import TrainSettings

CUSTOM_RATE = "own_rate"  # key of optimizer groups in checkpoints
Log = Callable[[int, Mapping[str, Any]], None]


class DistillCallback(TrainerCallback):
    """Evaluates, saves and times; each checkpoint also logs, so that resumed runs log alike."""

    progress: TokenProgress  # set by the trainer

    def __init__(
        self,
        distillation: Distillation,
        evaluation: Evaluation | None,
        settings: TrainSettings,
        log: Log,
        check_weights: Callable[[], None],
    ) -> None:
        self.distillation = distillation
        self.evaluation = evaluation
        self.settings = settings
        self.log = log
        self.check_weights = check_weights
        self.step_tokens = 0
        self._step_start = 0.0
        self._num_tokens = 0
        self._seconds = 0.0
        self._clock = Clock()

    def pop_throughput(self) -> tuple[int, float]:
        """Return this process's tokens and seconds since the last call, and reset them.

        Time for drawing text and for evaluations is excluded.
        """
        throughput = self._num_tokens, self._seconds
        self._num_tokens, self._seconds = 0, 0.0
        return throughput

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._evaluate(state)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        student = self.distillation.student
        student.start_step(state.global_step / self.settings.steps)
        for group in optimizer.param_groups:
            if CUSTOM_RATE in group:
                group["lr"] *= student.rate_scale  # the schedule resets it before every step
        self._step_start = self._clock.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._seconds += self._clock.now() - self._step_start
        self._num_tokens += self.step_tokens
        self.progress.add(1, self.step_tokens)
        self.step_tokens = 0
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
        if self.evaluation is None or not state.is_world_process_zero:
            return
        with self.distillation.decoding_mode() as student:
            metrics = self.evaluation(student)
            self.log(state.global_step, metrics | self._heldout_metrics(self.evaluation.examples))

    def _heldout_metrics(self, texts: Sequence[Example]) -> dict[str, float]:
        batch_size, device = self.settings.batch_size, self.distillation.target.device
        with self.distillation.evaluation_mode():
            for begin in range(0, len(texts), batch_size):
                batch = collate(texts[begin : begin + batch_size])
                self.distillation(batch["token_ids"].to(device), batch["loss_mask"].to(device))
            metrics = self.distillation.metrics(self.distillation.pop_totals())
        return {f"heldout/{name}": value for name, value in metrics.items()}
