"""Measure what a training step costs beyond the passes it needs, on this machine.

    python scripts/bench_training.py --output experiments/training_costs/results.json

The ratio is step / passes, which take turns in one process; the limit is 1.2. The target is the
tiny one. A step is the trainer's, with data, metrics and optimiser. The passes are the target's
forward pass and the drafter's forward and backward pass with the loss on full logits, of the same
batch. Medians are printed with 95% intervals, which need at least eight repeats.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import TrainerCallback

from specresearch import CausalLM
from specresearch.models import loading
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.proposers import DraftModel, Eagle, Eagle3, Medusa
from specresearch.results.provenance import describe_process
from specresearch.statistics import median_of
from specresearch.training.corpus import Mix
from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.sources import ListSource
from specresearch.training.distillation import Distillation
from specresearch.training.objectives import ForwardKL
from specresearch.training.students import Student
from specresearch.training.students.build import draft_student, eagle_student, medusa_student
from specresearch.training.train_settings import TrainSettings
from specresearch.training.trainer import DistillTrainer

NUM_WARM, LIMIT = 2, 1.2


def draft(target: CausalLM) -> Student:
    model = CausalLM.from_pretrained("zoo:tiny_draft", device=str(target.device), dtype="auto")
    return draft_student(DraftModel(model), target, [])


STUDENTS: dict[str, Callable[[CausalLM], Student]] = {
    "draft_model": draft,
    "medusa": lambda target: medusa_student(Medusa(), target, []),
    "eagle": lambda target: eagle_student(
        Eagle(), target, [], num_steps=1, token_weight=0.1, feature_weight=1.0
    ),
    "eagle3": lambda target: eagle_student(
        Eagle3(), target, [], num_steps=7, token_weight=1.0, feature_weight=0.0
    ),
}


@dataclass(frozen=True)
class Cost:
    """The cost of a step over that of its passes.

    Attributes:
        milliseconds: Medians of the step, of the target's pass and of the drafter's.
    """

    name: str
    median: float
    low: float | None
    high: float | None
    milliseconds: tuple[float, float, float]
    num_tokens: int


class RandomText(ListSource):
    """Random examples in which every token but the first is predicted."""

    def __init__(self, num_examples: int, num_tokens: int, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(vocab_size, (num_examples, num_tokens), generator=generator).tolist()
        self.examples = Examples(Example.reply(row[:1], row[1:]) for row in rows)


class Turns(TrainerCallback):
    """Time each optimiser step, and the passes alone after it."""

    def __init__(self, distillation: Distillation) -> None:
        self.distillation = distillation
        self.device = distillation.target.device
        self.times: list[tuple[float, float, float]] = []
        distillation.register_forward_pre_hook(self._keep)

    def _keep(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.token_ids: Tensor = inputs[0]

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begin = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = self._now() - self.begin
        self.times.append((step, *self._passes()))
        self.begin = self._now()

    def _passes(self) -> tuple[float, float]:
        student = self.distillation
        begin = self._now()
        with torch.no_grad():
            layers = (FINAL_NORM, *student.student.hidden_layers)
            output = student.target.forward_whole(self.token_ids, layers, want_logits=True)
        middle = self._now()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=student.autocasts):
            loss = torch.stack(
                [
                    self._loss(step, output.logits)
                    for step in student.student.steps(self.token_ids, output.hidden[1:])
                ]
            )
            loss.sum().backward()
        end = self._now()
        student.zero_grad()
        return middle - begin, end - middle

    def _loss(self, step: Any, target_logits: Tensor) -> Tensor:
        rows = self.token_ids.shape[1] - step.shift - 1
        drafted = step.readout(step.states[:, :rows].flatten(0, 1))
        labels = self.token_ids[:, step.shift + 1 :].flatten()
        loss = self.distillation.objective(
            target_logits[:, step.shift : step.shift + rows].flatten(0, 1), drafted, labels
        ).sum()
        if step.regression is None or not self.distillation.student.feature_weight:
            return loss
        return loss + torch.nn.functional.smooth_l1_loss(
            *(side.float() for side in step.regression), reduction="sum"
        )


def measure(name: str, target: CausalLM, repeats: int, batch_size: int, num_tokens: int) -> Cost:
    distillation = Distillation(STUDENTS[name](target), target, ForwardKL())
    turns, steps = Turns(distillation), repeats + NUM_WARM
    text = RandomText(batch_size * steps, num_tokens, target.vocab_size)
    settings = TrainSettings(steps=steps, batch_size=batch_size, log_every=1, save_every=steps)
    with tempfile.TemporaryDirectory() as folder:
        mix = Mix({"fixed": (1.0, text)})
        trainer = DistillTrainer(
            distillation, mix, settings, Path(folder), log=lambda step, values: None
        )
        trainer.add_callback(turns)
        trainer.run()
    step, target_pass, drafter_pass = np.asarray(turns.times[NUM_WARM:]).T
    ratios = step / (target_pass + drafter_pass)
    median = median_of(ratios)
    low, high = median.interval or (None, None)
    medians = (
        1e3 * float(np.median(step)),
        1e3 * float(np.median(target_pass)),
        1e3 * float(np.median(drafter_pass)),
    )
    return Cost(
        name=name,
        median=median.value,
        low=low,
        high=high,
        milliseconds=medians,
        num_tokens=batch_size * num_tokens,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default=loading.default_device())
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of an example")
    parser.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    target = CausalLM.from_pretrained("zoo:tiny", device=args.device)
    costs = [
        measure(name, target, args.repeats, args.batch_size, args.tokens) for name in args.students
    ]
    columns = ["median", "95%", "step, ms", "target, ms", "drafter, ms", "within 1.2"]
    table = Table("step / passes", *columns)
    for cost in costs:
        spread = "-" if cost.low is None else f"{cost.low:.3f} to {cost.high:.3f}"
        figures = (f"{cost.median:.3f}", spread)
        times = (f"{value:.1f}" for value in cost.milliseconds)
        table.add_row(cost.name, *figures, *times, "yes" if cost.median <= LIMIT else "no")
    Console().print(table)
    if args.output:
        provenance = describe_process(("scripts/bench_training.py",), torch.device(args.device))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(cost) for cost in costs]
        args.output.write_text(
            json.dumps({"limit": LIMIT, "results": rows, "provenance": provenance}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
