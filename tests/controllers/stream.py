"""Requests that come and go on a simulated machine, each with an acceptance of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from simulation import Machine, record_of

from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.request import Request, RequestState

PREFILL = 25e-3  # seconds of the target's for a prompt
READ_ONCE, READ_TOKEN = 1.5e-3, 25e-6  # seconds of a drafter that reads late: a pass, a token
CATCHES_UP = 11  # tokens that it reads with the next draft all the same
NOISE = 0.06


@dataclass(frozen=True)
class Stream:
    """Requests of 48 to 96 tokens after prompts of 20 to 256; when one ends the next one starts.

    Attributes:
        acceptance: Mean of a beta distribution from which each request draws its own.
        first: Acceptance of the requests that start the run, if it differs.
    """

    machine: Machine
    concurrency: int
    num_requests: int
    acceptance: float
    first: float | None = None

    def throughput(self, controller: Controller, seed: int) -> float:
        """Tokens per second; the same requests with the same acceptance for the same seed."""
        rng = np.random.default_rng(seed)
        acceptance = rng.beta(2 * self.acceptance, 2 * (1 - self.acceptance), self.num_requests)
        if self.first is not None:
            acceptance[: self.concurrency] = self.first
        waiting = [self._request(b, rng) for b in range(self.num_requests)]
        num_tokens = sum(row.max_new_tokens for row in waiting)
        running: list[RequestState] = []
        read = [0] * self.num_requests
        seconds = 0.0
        while waiting or running:
            come = waiting[: self.concurrency - len(running)]
            del waiting[: len(come)]
            running += come
            seconds += PREFILL * len(come) + self._step(controller, running, acceptance, read, rng)
            running = [row for row in running if row.num_remaining]
        return num_tokens / seconds

    @staticmethod
    def _request(slot: int, rng: np.random.Generator) -> RequestState:
        row = RequestState(
            Request((1,) * int(rng.integers(20, 257)), id=str(slot)), slot, 0, frozenset(), 100_000
        )
        row.max_new_tokens = int(rng.integers(48, 97))
        return row

    def _step(
        self,
        controller: Controller,
        rows: Sequence[RequestState],
        acceptance: np.ndarray,
        read: list[int],
        rng: np.random.Generator,
    ) -> float:
        """Run one step and return its seconds.

        Args:
            read: Tokens that the drafter has prefilled, by slot.
        """
        batch = Batch(rows, torch.device("cpu"), 8)
        budget = controller.budget(batch)
        lengths = [
            room if n is None else min(n, room) for n, room in zip(budget, batch.room, strict=True)
        ]
        unread = [
            len(row.tokens) - read[row.slot] if k else 0
            for row, k in zip(rows, lengths, strict=True)
        ]
        num_read = sum(number for number in unread if number > CATCHES_UP)
        accepted = [
            int(np.cumprod(rng.random(k) < acceptance[row.slot]).sum())
            for row, k in zip(rows, lengths, strict=True)
        ]
        slower = float(np.exp(NOISE * abs(rng.standard_normal())))
        times = self.machine.times(len(rows), max(lengths), sum(lengths))
        lazy_prefill = READ_ONCE + READ_TOKEN * num_read if num_read else 0.0
        times = replace(
            times,
            propose=times.propose * slower,
            verify=times.verify * slower,
            total=times.total * slower,
            lazy_prefill=lazy_prefill * slower,
        )
        record = replace(
            record_of(lengths, accepted, times),
            context=tuple(len(row.tokens) for row in rows),
            num_lazy_prefill_tokens=num_read,
        )
        controller.observe(record)
        for row, k, new in zip(rows, lengths, accepted, strict=True):
            if k:
                read[row.slot] = len(row.tokens)
            row.tokens += [1] * min(new + 1, row.num_remaining)
        return times.total + times.lazy_prefill
