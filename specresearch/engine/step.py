"""The end of a step: its record, and what observers see of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.batch import Batch, Delivery
from specresearch.clock import Clock
from specresearch.controllers import Controller
from specresearch.engine.prefill import Prefill
from specresearch.engine.scheduler import Scheduler
from specresearch.metrics import StepRecord, StepTimes
from specresearch.metrics.shift import StepShift
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal, upload


@dataclass(frozen=True)
class Judged:
    """A step up to the tokens that its rows received."""

    batch: Batch
    proposal: Proposal
    output: ModelOutput
    delivery: Delivery
    shift: StepShift | None


@dataclass(frozen=True)
class Step:
    """Everything that went through one step.

    Attributes:
        batch: The rows, which already hold the new tokens.
        output: The target's logits [B, N, V] and the hidden states that the proposer asked for.
            Keeping a step keeps these tensors.
        delivery: The verdict on the host, and how many tokens each row received.
    """

    batch: Batch
    proposal: Proposal
    output: ModelOutput
    delivery: Delivery
    record: StepRecord

    def delivered(self) -> tuple[Int[Tensor, "B W"], Int[Tensor, "B W"]]:
        """Return the node that predicted each delivered token, and the token; padded with 0."""
        device, width = self.output.logits.device, max(self.delivery.num_new)
        nodes = self.delivery.verdict.path[:, :width].clamp(min=0)
        tokens = []
        for row, num_new in zip(self.batch.rows, self.delivery.num_new, strict=True):
            tokens.append(row.newest(num_new) + [0] * (width - num_new))
        nodes = nodes.to(device, non_blocking=True)
        return nodes, upload(tokens, device, torch.long)


StepObserver = Callable[[Step], None]


@dataclass
class StepRecorder:
    """Records steps, counts them for their requests, and shows them to controller and observers."""

    clock: Clock
    scheduler: Scheduler
    prefill: Prefill
    controller: Controller
    observers: Sequence[StepObserver] = ()

    def record(self, start: float, judged: Judged) -> StepRecord:
        """Record a step that began at `start`. What observers do takes no time on the clock."""
        batch, proposal, delivery = judged.batch, judged.proposal, judged.delivery
        laps = self.clock.pop_laps()
        elapsed = self.clock.now() - batch.formed_at
        prefilled = self.prefill.pop_counts()
        record = StepRecord.of(
            batch,
            proposal,
            delivery,
            StepTimes.of(laps, elapsed),
            shift=judged.shift,
            start=start,
            num_waiting=len(self.scheduler.waiting),
            num_prefill_tokens=prefilled.num_tokens,
            num_lazy_prefill_tokens=prefilled.num_lazy_tokens,
        )
        for b, row in enumerate(batch.rows):
            self.scheduler.counts[row].add(record, b)
        self.controller.observe(record)
        with self.clock.paused():
            for observe in self.observers:
                observe(Step(batch, proposal, judged.output, delivery, record))
        return record
