"""Decode requests: draft, verify in one pass, accept, keep what was accepted. Knows no method by name."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance import (
    RULES,
    AcceptanceSampler,
    LossySampler,
    Rejection,
    shift_of_tokens,
)
from specresearch.batch import FAILED, Batch, Delivery, Request, RequestState
from specresearch.controllers import Adaptive, Controller, Fixed, drafts_wanted
from specresearch.engine.checks import ProposalCheck
from specresearch.engine.faults import find_faults
from specresearch.engine.guard import StepGuard
from specresearch.engine.inbox import Inbox
from specresearch.engine.logprobs import record_logprobs
from specresearch.engine.output import RequestOutput
from specresearch.engine.prefill import Prefill
from specresearch.engine.scheduler import Scheduler
from specresearch.engine.seeds import Seeds, isolates_requests
from specresearch.engine.settings import SchedulerSettings
from specresearch.metrics import Counts, RequestRecord, StepRecord
from specresearch.metrics.shift import StepShift
from specresearch.metrics.times import StepClock
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import Autoregressive, Proposer
from specresearch.sampling import SamplingParams

Watcher = Callable[[Batch, Proposal, ModelOutput, Delivery, StepRecord], None]


class Engine:
    """One target, one way of drafting (none: plain decoding), one acceptance rule, one controller.

    max_batch_size: requests decoded together. seed: for requests that bring none of their own.
    on_step: called with the record of every step. measure_shift: records say how far a lossy rule moved the output.
    scheduling: order of admission and limits. watch: sees what went through every step, in time that counts for no request.
    slots: of the target's cache, for `max_batch_size` requests, where engines take turns on one target; None: any that are free.
    num_checked: how many of the first proposals with drafts go through `Proposal.check`; None: none of the package's own
    proposers and `FOREIGN_CHECKS` of another.

    isolates_requests: the drafts of a request depend on that request alone. Equal seeds then give equal tokens, up to rounding,
    whatever else is in the batch. Otherwise the number of its submission is mixed into every seed, so that no two requests share
    draws, and the same submissions in the same order give the same tokens as far as they are granted the same drafts.
    One thread steps and takes outputs; `submit`, `cancel` and `abort` may be called from any. A step is all or nothing: after
    an exception in one the engine refuses to go on until its requests have been dropped by `abort`. Engines on one target take
    turns in one thread. The proposer and the controller begin with nothing learnt.
    """

    def __init__(
        self,
        target: CausalLM,
        proposer: Proposer | None = None,
        acceptance: AcceptanceSampler | None = None,
        controller: Controller | None = None,
        *,
        max_batch_size: int = 1,
        seed: int = 0,
        on_step: Callable[[StepRecord], None] | None = None,
        measure_shift: bool = False,
        scheduling: SchedulerSettings | None = None,
        watch: Watcher | None = None,
        slots: range | None = None,
        num_checked: int | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size={max_batch_size} must be at least 1")
        self.target = target
        self.proposer = proposer or Autoregressive()
        self.acceptance = acceptance or Rejection()
        self._check_rule()
        self.controller = controller or Fixed()
        if isinstance(self.controller, Adaptive) and self.proposer.num_draft_tokens:
            self.controller.bind(self.proposer.kind, self.proposer.num_draft_tokens)
        self.on_step, self.watch = on_step, watch
        is_measured = measure_shift and not self.acceptance.lossless
        self._lossy = (
            self.acceptance if is_measured and isinstance(self.acceptance, LossySampler) else None
        )
        num_slots = slots.stop if slots is not None else max_batch_size
        target.allocate(
            num_slots, *(part.max_nodes for part in (self.proposer, *self.proposer.proposers))
        )
        slots = slots or range(target.cache.num_slots)
        self.proposer.bind(target, target.cache.num_slots)
        self._forget_all()
        scheduling = scheduling or SchedulerSettings()
        max_nodes = self.proposer.max_nodes
        num_probes = max_nodes - 1 - self.proposer.num_draft_tokens
        self.isolates_requests = isolates_requests(self.proposer, self.controller, scheduling)
        seeds = Seeds(seed, self.isolates_requests)
        self.scheduler = Scheduler(
            target, scheduling, max_batch_size, seeds, max_nodes, num_probes, slots
        )
        self.prefill = Prefill(target, self.proposer)
        self._check = ProposalCheck(self.proposer, target.vocab_size, num_checked)
        self._inbox = Inbox()
        self._guard = StepGuard(self._settle)

    def generate(
        self,
        requests: Iterable[Request | str | Sequence[int]],
        sampling: SamplingParams | None = None,
    ) -> Iterator[RequestOutput]:
        """Decode all requests; outputs come as they finish.

        requests: prompts as text or token ids, decoded with `sampling`, or `Request`s with their own.
        """
        if isinstance(requests, str):
            raise ValueError("generate takes a list of prompts; put the one prompt into a list")
        own: set[str] = set()
        try:
            for number, request in enumerate(requests):
                own.add(
                    self.submit(
                        self._as_request(request, sampling or SamplingParams(), str(number))
                    )
                )
            while own:
                yield from self._take(own)
                own = self._inbox.live(own)
                if own:
                    self.step()
        finally:
            self.cancel(*own)
            self._take(own)

    def submit(self, request: Request, arrival_time: float | None = None) -> str:
        """Queue a request, from any thread; returns its id.

        arrival_time: seconds of `time.perf_counter`, by default now. It may lie in the past, and waiting counts from there.
        Raises ValueError for a request that can never be served, or has the id of another whose output has not been taken.
        """
        self._guard.refuse_after_failure()
        id = self._inbox.submit(request, lambda named: self.scheduler.prepare(named, arrival_time))
        self._guard.settle_if_idle()
        return id

    def cancel(self, *ids: str) -> None:
        """Drop these requests unless they have finished, from any thread: now or, while a step is made, at its end."""
        self._inbox.cancel(ids)
        self._guard.settle_if_idle()

    def abort(self) -> None:
        """Drop every request that has not finished, as `cancel` does. Outputs that wait to be taken stay."""
        self._inbox.cancel()
        self._guard.settle_if_idle()

    @property
    def has_work(self) -> bool:
        """Requests wait or run, or outputs have not been taken."""
        return bool(self._inbox) or self.scheduler.has_work

    def finished(self) -> Iterator[RequestOutput]:
        """Take the outputs of the requests that have ended since the last call."""
        return self._take(None)

    def _take(self, ids: Collection[str] | None) -> Iterator[RequestOutput]:
        """Take the outputs that wait, of these requests or of all."""
        taken, left = [], []
        for row, counts in self.scheduler.finished:
            (taken if ids is None or row.id in ids else left).append((row, counts))
        self.scheduler.finished = left
        self._inbox.forget(row.id for row, _ in taken)
        return (self._output(row, counts) for row, counts in taken)

    @torch.inference_mode()
    def step(self) -> StepRecord | None:
        """One round: at least one token for every request whose prompt is in. None: there was no such request yet.

        Raises RuntimeError where another thread is in the middle of a step, or an earlier step failed.
        """
        with self._guard.step():
            return self._step()

    def _step(self) -> StepRecord | None:
        start = time.perf_counter()
        plan = self.scheduler.plan()
        self._forget(plan.freed)
        self.prefill.feed(plan.chunks)
        batch = Batch(
            self.scheduler.decoding, self.target.device, self.target.vocab_size, self._decode
        )
        if not batch.rows:
            return None
        clock = StepClock(self.target.device)
        budget = self._budget(batch)
        clock.lap("control")
        if self.prefill.catch_up(batch, budget):
            clock.skip()
        proposal = self._trim(self.proposer.propose(batch, budget))
        self._check(proposal, batch, budget)
        clock.lap("propose")
        output = self.target.forward(
            batch.slots, proposal, hidden_layers=self.proposer.hidden_layers
        )
        clock.lap("verify")
        verdict = self.acceptance(proposal, output.logits, batch.sampling)
        delivery = batch.append(proposal, verdict, find_faults(proposal, output.logits))
        record_logprobs(batch, output.logits, delivery)
        clock.lap("accept")
        self.target.commit(batch.slots, delivery.verdict)
        clock.lap("commit")
        self.proposer.observe(batch, proposal, output, delivery.verdict)
        clock.lap("propose")
        reading = self.prefill.take()
        late, drafters = reading.catch_up_seconds, reading.draft_seconds
        times = clock.stop(reading.seconds, self.scheduler.take_seconds(), late, drafters)
        shift = self._shift(batch, proposal, output.logits, verdict, delivery.num_new)
        num_waiting = len(self.scheduler.waiting)
        num_read, num_late = reading.num_tokens, reading.num_caught_up
        record = StepRecord.of(
            batch, proposal, delivery, times, shift, start, num_waiting, num_read, num_late
        )
        self._account(batch, record)
        self._show(batch, proposal, output, delivery, record)
        self._scrub(batch)
        self._forget(self.scheduler.retire())
        return record

    def _settle(self) -> None:
        """Queue what was submitted, and drop what was cancelled and has not finished."""
        if self._inbox:
            mail = self._inbox.take()
            for row in mail.new:
                self.scheduler.submit(row)
            finished = {row for row, _ in self.scheduler.finished}
            dropped = [row for row in mail.cancelled if row not in finished]
            self._inbox.forget(row.id for row in dropped)
            self._forget(self.scheduler.drop(dropped))
        if not (self.scheduler.waiting or self.scheduler.running):
            self._forget(self.scheduler.drop(()))  # slots that a failed step lost track of
            self.prefill.take()
            self._guard.forgive()

    def stand_still(self, since: float) -> float:
        """What was done since then was no service: every request's time goes on from there. Returns the seconds."""
        seconds = time.perf_counter() - since
        self.scheduler.stand_still(seconds)
        return seconds

    def _check_rule(self) -> None:
        kind, rule = self.proposer.kind, self.acceptance
        reason = rule.refuses(kind)
        if reason:
            others = [
                name
                for name, other in RULES.items()
                if other.lossless and other().refuses(kind) is None
            ]
            raise ValueError(
                f"acceptance rule {type(rule).__name__} cannot judge the drafts of {type(self.proposer).__name__}: {reason}; "
                f"use acceptance={' or '.join(others)}"
            )

    def _as_request(
        self, request: Request | str | Sequence[int], sampling: SamplingParams, id: str
    ) -> Request:
        if isinstance(request, Request):
            return request
        if isinstance(request, str):
            if self.target.tokenizer is None:
                raise ValueError("this target has no tokenizer; give prompts as token ids")
            return Request(self.target.tokenizer(request)["input_ids"], sampling, id)
        return Request(request, sampling, id)

    def _decode(self, token_ids: list[int]) -> str:
        tokenizer = self.target.tokenizer
        return (
            "" if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=True))
        )

    def _budget(self, batch: Batch) -> list[int]:
        """What is wanted, as far as the scheduler grants it."""
        proposer = self.proposer
        return self.scheduler.grant(
            *drafts_wanted(self.controller, batch, proposer.num_draft_tokens, proposer.kind)
        )

    def _trim(self, proposal: Proposal) -> Proposal:
        return self.controller.trim(proposal) if isinstance(self.controller, Adaptive) else proposal

    def _shift(
        self,
        batch: Batch,
        proposal: Proposal,
        logits: Float[Tensor, "B N V"],
        verdict: Verdict,
        num_new: Sequence[int],
    ) -> StepShift | None:
        """What a lossy rule did to the delivered tokens. The clocks of the requests stand still meanwhile."""
        if self._lossy is None:
            return None
        begin = time.perf_counter()
        rows = shift_of_tokens(self._lossy, proposal, logits, verdict, batch.sampling, num_new)
        return StepShift(rows, self.stand_still(begin))

    def _show(
        self,
        batch: Batch,
        proposal: Proposal,
        output: ModelOutput,
        delivery: Delivery,
        record: StepRecord,
    ) -> None:
        if self.watch is not None:
            begin = time.perf_counter()
            self.watch(batch, proposal, output, delivery, record)
            self.stand_still(begin)

    def _account(self, batch: Batch, record: StepRecord) -> None:
        for b, row in enumerate(batch.rows):
            self.scheduler.counts[row].add_step(
                record.num_draft_tokens[b],
                record.draft_depth[b],
                record.num_accepted_tokens[b],
                record.num_new_tokens[b],
                record.expected_acceptance[b] if record.expected_acceptance is not None else None,
                record.shift.rows[b] if record.shift is not None else None,
                record.num_judged_tokens[b],
                record.judged_depth[b],
            )
        self.controller.observe(record)
        if self.on_step is not None:
            self.on_step(record)

    def _scrub(self, batch: Batch) -> None:
        failed = [row.slot for row in batch.rows if row.finish_reason == FAILED]
        if failed:
            self.target.cache.scrub(failed)
            self.proposer.scrub(failed)

    def _forget(self, slots: Sequence[int]) -> None:
        if slots:
            self.prefill.forget(slots)
            self.proposer.finish(slots)

    def _forget_all(self) -> None:
        """What was learnt with another engine, whose draws this one's may equal."""
        self.proposer.reset()
        if isinstance(self.controller, Adaptive):
            self.controller.reset()

    def _output(self, row: RequestState, counts: Counts) -> RequestOutput:
        assert row.finish_reason is not None
        text = self._decode(row.output_ids)[: row.stop_at]
        record = RequestRecord.of(row, counts)
        logprobs = tuple(row.logprobs)
        return RequestOutput(
            row.id, tuple(row.output_ids), text, row.finish_reason, logprobs, record, row.error
        )
