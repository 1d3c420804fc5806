"""A machine with known step times and a target with known acceptance, to test controllers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from shape_checks import unchecked

from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposal import DraftKind
from specresearch.request import Request, RequestState


@dataclass(frozen=True)
class Machine:
    """Seconds of a pass of the draft and of the target, and of every token in each."""

    draft: float = 1e-3
    draft_token: float = 0.0
    verify: float = 10e-3
    verify_token: float = 0.1e-3
    overhead: float = 0.5e-3

    def times(self, num_rows: int, longest: int, num_drafts: int) -> StepTimes:
        propose = longest * (self.draft + num_rows * self.draft_token)
        verify = self.verify + self.verify_token * (num_rows + num_drafts)
        return StepTimes(propose, verify, 0.0, 0.0, propose + verify + self.overhead)

    def rate(self, lengths: Sequence[int], acceptance: Sequence[float]) -> float:
        """Expected tokens per second."""
        tokens = sum((1 - a ** (k + 1)) / (1 - a) for a, k in zip(acceptance, lengths, strict=True))
        return tokens / self.times(len(lengths), max(lengths), sum(lengths)).total


def rows_of(
    num: int, num_draft_tokens: int | None = None, num_tokens: int = 3
) -> list[RequestState]:
    requests = [
        Request((1,) * num_tokens, id="same", num_draft_tokens=num_draft_tokens) for _ in range(num)
    ]
    return [
        RequestState(request, slot, 0, frozenset(), 100_000)
        for slot, request in enumerate(requests)
    ]


def batch_of(rows: Sequence[RequestState], room: int = 10_000) -> Batch:
    for row in rows:
        row.max_new_tokens = room
    return Batch(rows, torch.device("cpu"), 8)


def record_of(
    drafted: Sequence[int],
    accepted: Sequence[int],
    times: StepTimes | None = None,
    context: int = 2,
) -> StepRecord:
    """A step of chains whose rows were drafted and accepted so."""
    num = len(drafted)
    return StepRecord(
        ("same",) * num,
        tuple(drafted),
        tuple(drafted),
        tuple(accepted),
        tuple(n + 1 for n in accepted),
        (context,) * num,
        None,
        max(drafted) + 1,
        times or Machine().times(num, max(drafted), sum(drafted)),
    )


class Simulation:
    """Runs a controller on a machine; row b's drafts are accepted with chance `acceptance[b]`.

    Args:
        supply: Chance of each row to draft when asked to.
        reading: Seconds of lazy prefill before a row's first draft.
        room: Tokens that rows have left at any time.
        control: Seconds that the controller itself takes in a step with drafts.
    """

    def __init__(
        self,
        controller: Controller,
        acceptance: Sequence[float],
        machine: Machine | None = None,
        most: int = 10,
        noise: float = 0.0,
        outlier: Callable[[int, int], float] = lambda step, longest: 0.0,
        supply: Sequence[float] | None = None,
        reading: float = 0.0,
        room: int = 10_000,
        control: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.controller, self.acceptance, self.machine = (
            controller,
            acceptance,
            machine or Machine(),
        )
        self.most, self.noise, self.outlier = most, noise, outlier
        self.supply, self.reading, self.room, self.control = supply, reading, room, control
        self.rng = np.random.default_rng(seed)
        self.num_steps = 0
        controller.bind(DraftKind(), most)
        self.replace_rows()

    def replace_rows(self) -> None:
        """Other requests of the same kind come in the place of all."""
        self.rows, self.has_read = (
            rows_of(len(self.acceptance), num_tokens=100),
            [False] * len(self.acceptance),
        )

    def step(self) -> list[int]:
        """The lengths of one step."""
        budget = self.controller.budget(batch_of(self.rows, self.room))
        lengths = [self.most if n is None else min(n, self.most) for n in budget]
        if self.supply is not None:
            makes = self.rng.random(len(lengths)) < self.supply
            lengths = [
                length if drafts else 0 for length, drafts in zip(lengths, makes, strict=True)
            ]
        accepted = [
            int(np.cumprod(self.rng.random(k) < a).sum())
            for k, a in zip(lengths, self.acceptance, strict=True)
        ]
        times = self.machine.times(len(lengths), max(lengths), sum(lengths))
        factor = float(np.exp(self.noise * self.rng.standard_normal()))
        verify = times.verify * factor + self.outlier(self.num_steps, max(lengths))
        read_now = [
            length > 0 and not has for length, has in zip(lengths, self.has_read, strict=True)
        ]
        self.has_read = [has or reads for has, reads in zip(self.has_read, read_now, strict=True)]
        num_read = sum(
            len(row.tokens)
            for row, reads in zip(self.rows, read_now, strict=True)
            if reads and self.reading
        )
        lazy_prefill = self.reading * sum(read_now)
        control = self.control if any(lengths) else 0.0
        total = times.total - times.verify + verify + control
        times = replace(
            times, verify=verify, total=total, lazy_prefill=lazy_prefill, control=control
        )
        context = len(self.rows[0].tokens)
        self.controller.observe(
            replace(record_of(lengths, accepted, times, context), num_lazy_prefill_tokens=num_read)
        )
        self.num_steps += 1
        return lengths

    def run(self, num_steps: int) -> list[list[int]]:
        first = [self.step() for _ in range(min(num_steps, 20))]
        with unchecked():
            return first + [self.step() for _ in range(num_steps - len(first))]
