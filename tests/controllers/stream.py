"""Requests that come and go on a simulated machine, each with an acceptance of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from simulation import Machine, record_of

from specresearch.batch import Batch
from specresearch.controllers import Controller
from specresearch.proposal import DraftKind
from specresearch.request import Request, RequestState

PREFILL = 25e-3  # seconds of the target's for a prompt
READ_ONCE, READ_TOKEN = 1.5e-3, 25e-6  # seconds of a drafter that reads late: a pass, a token
CATCHES_UP = 11  # tokens that it reads with the next draft all the same
NOISE = 0.06
MOST = 10  # drafts of a row
BURST, BURST_STEPS = 1.5, 20  # how much slower other programs make so many steps


@dataclass(frozen=True)
class Stream:
    """Requests of 48 to 96 tokens after prompts of 20 to 256; when one ends the next one starts.

    Attributes:
        acceptance: Mean of a beta distribution from which each request draws its own.
        first: Acceptance of the requests that start the run, if it differs.
        last: Mean of the second half of the requests, if it differs.
        turn: Acceptance of a request from the middle of its output on, if it differs.
        length: Of outputs, in multiples of 48 to 96 tokens.
        busy: The machine of the middle third of the requests, if it differs.
        supply: Chance of a row to draft when asked to.
        prefills_lazily: The drafter reads a prompt before its first draft.
        absurd: Chance of a step to take ten times as long.
        bursts: Chance of a step to be the first of some during which other programs run.
        control: Seconds that the controller takes in a step with drafts.
        cold: Seconds that the first step after a change of depth takes longer.
    """

    machine: Machine
    concurrency: int
    num_requests: int
    acceptance: float
    first: float | None = None
    last: float | None = None
    turn: float | None = None
    length: int = 1
    busy: Machine | None = None
    supply: float = 1.0
    prefills_lazily: bool = True
    absurd: float = 0.0
    bursts: float = 0.0
    control: float = 0.0
    cold: float = 0.0

    def throughput(self, controller: Controller, seed: int) -> float:
        """Tokens per second; the same requests with the same acceptance for the same seed."""
        run = StreamRun(self, controller, np.random.default_rng(seed))
        return run.num_tokens / run.seconds()


@dataclass
class StreamRun:
    """One run of a stream.

    Attributes:
        read: Tokens that the drafter has prefilled, by slot.
        last_depth: Of the last step.
        num_slow: Steps that other programs will still make slower.
    """

    stream: Stream
    controller: Controller
    rng: np.random.Generator
    num_tokens: int = field(init=False)
    last_depth: int = 0
    num_slow: int = 0

    def __post_init__(self) -> None:
        stream, rng, num = self.stream, self.rng, self.stream.num_requests
        self.controller.bind(DraftKind(), MOST)
        means = np.full(num, stream.acceptance)
        if stream.last is not None:
            means[num // 2 :] = stream.last
        self.acceptance = rng.beta(2 * means, 2 * (1 - means), num)
        if stream.first is not None:
            self.acceptance[: stream.concurrency] = stream.first
        self.waiting = [self._request(slot) for slot in range(num)]
        self.num_tokens = sum(row.max_new_tokens for row in self.waiting)
        self.read = [0] * num

    def seconds(self) -> float:
        """Decode all requests and return how long that took."""
        stream, seconds = self.stream, 0.0
        running: list[RequestState] = []
        while self.waiting or running:
            come = self.waiting[: stream.concurrency - len(running)]
            del self.waiting[: len(come)]
            running += come
            seconds += PREFILL * len(come) + self._step(running)
            running = [row for row in running if row.num_remaining]
        return seconds

    def _request(self, slot: int) -> RequestState:
        row = RequestState(
            Request((1,) * int(self.rng.integers(20, 257)), id=str(slot)),
            slot,
            0,
            frozenset(),
            100_000,
        )
        row.max_new_tokens = self.stream.length * int(self.rng.integers(48, 97))
        return row

    def _acceptance(self, row: RequestState) -> float:
        has_turned = 2 * row.num_generated > row.max_new_tokens
        turn = self.stream.turn
        return turn if has_turned and turn is not None else self.acceptance[row.slot]

    def _machine(self) -> Machine:
        stream = self.stream
        if stream.busy is not None and 1 <= 3 * len(self.waiting) // stream.num_requests < 2:
            return stream.busy
        return stream.machine

    def _step(self, rows: Sequence[RequestState]) -> float:
        """Run one step and return its seconds."""
        stream, rng = self.stream, self.rng
        batch = Batch(rows, torch.device("cpu"), 8)
        budget = self.controller.budget(batch)
        lengths = [
            min(MOST, room) if n is None else min(n, room)
            for n, room in zip(budget, batch.room, strict=True)
        ]
        if stream.supply < 1:
            makes = rng.random(len(rows)) < stream.supply
            lengths = [k if made else 0 for k, made in zip(lengths, makes, strict=True)]
        unread = [
            len(row.tokens) - self.read[row.slot] if k and stream.prefills_lazily else 0
            for row, k in zip(rows, lengths, strict=True)
        ]
        num_read = sum(number for number in unread if number > CATCHES_UP)
        accepted = [
            int(np.cumprod(rng.random(k) < self._acceptance(row)).sum())
            for row, k in zip(rows, lengths, strict=True)
        ]
        slower = float(np.exp(NOISE * abs(rng.standard_normal())))
        if stream.absurd:
            slower *= 10 if rng.random() < stream.absurd else 1
        if stream.bursts:
            begins = rng.random() < stream.bursts
            self.num_slow = BURST_STEPS if begins else max(self.num_slow - 1, 0)
            slower *= BURST if self.num_slow else 1
        times = self._machine().times(len(rows), max(lengths), sum(lengths))
        lazy_prefill = READ_ONCE + READ_TOKEN * num_read if num_read else 0.0
        control = stream.control if any(lengths) else 0.0
        cold = stream.cold * (max(lengths) != self.last_depth)
        self.last_depth = max(lengths)
        times = replace(
            times,
            propose=times.propose * slower,
            verify=times.verify * slower + cold,
            total=times.total * slower + cold + control,
            lazy_prefill=lazy_prefill * slower,
            control=control,
        )
        record = replace(
            record_of(lengths, accepted, times),
            context=tuple(len(row.tokens) for row in rows),
            num_lazy_prefill_tokens=num_read,
        )
        self.controller.observe(record)
        for row, k, new in zip(rows, lengths, accepted, strict=True):
            if k:
                self.read[row.slot] = len(row.tokens)
            row.tokens += [1] * min(new + 1, row.num_remaining)
        return times.total + times.lazy_prefill
