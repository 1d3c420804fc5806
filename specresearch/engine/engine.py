"""Decode requests: draft, verify in one pass, accept, and keep what was accepted.

The engine knows no method by name.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import torch

from specresearch.acceptance import AcceptanceSampler, Rejection
from specresearch.batch import Batch
from specresearch.clock import Clock
from specresearch.controllers import Controller, Fixed, draft_demand
from specresearch.engine.auto_shape import settled
from specresearch.engine.checks import ProposalCheck, check_rule, check_served
from specresearch.engine.grammar_masks import GrammarMasks
from specresearch.engine.guard import StepGuard
from specresearch.engine.inbox import Inbox
from specresearch.engine.judge import Judge
from specresearch.engine.memory_relief import MemoryRelief
from specresearch.engine.output import RequestOutput
from specresearch.engine.prefill import Prefill
from specresearch.engine.prefix_cache import PrefixCache
from specresearch.engine.requests import as_requests
from specresearch.engine.scheduler import Scheduler
from specresearch.engine.seeds import Seeds, isolates_requests
from specresearch.engine.settings import SchedulerSettings
from specresearch.engine.step import Judged, StepObserver, StepRecorder
from specresearch.metrics import StepRecord
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import Proposal
from specresearch.proposers import Autoregressive, Proposer
from specresearch.proposers.base import drafts_of
from specresearch.request import FAILED, Request
from specresearch.sampling import SamplingParams
from specresearch.token_counts import TokenCounts


class Engine:
    """Decodes requests with one target, one proposer, one acceptance rule and one controller.

    One thread calls `step` and takes outputs; `submit`, `cancel` and `abort` may be called from any
    thread. A step is all or nothing: after an exception in one, the engine refuses to go on until
    `abort` has dropped its requests. Engines on one target take turns in one thread.

    Args:
        proposer: The way of drafting; None decodes plainly. It starts with nothing learned.
            One that leaves its shape to `auto` drafts as `specresearch.calibrate` has found.
        acceptance: The acceptance rule; rejection sampling by default.
        controller: Chooses how much to draft; by default as much as the proposer likes. Where
            nothing drafts there is nothing to choose, and it is not asked.
        max_batch_size: Requests decoded together.
        seed: Default seed for requests without one.
        observers: Called at the end of every step, with the clock paused.
        measure_shift: Record how far a lossy rule moves the output.
        scheduling: Order of admission and limits.
        clock: Tells the time of everything that the engine records.
        slots: Slots of the target's cache, for engines that take turns on one target; None: any
            that are free.
        num_checked: How many of the first proposals with drafts go through `Proposal.check`; None:
            none of the package's own proposers, and `FOREIGN_CHECKS` of another.

    Attributes:
        isolates_requests: True if the drafts of a request depend on that request alone. Equal seeds
            then give equal tokens, up to rounding, whatever else is in the batch. Otherwise (see
            `Seeds`) the same submissions in the same order give the same tokens, as far as they
            are granted the same drafts.
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
        observers: Sequence[StepObserver] = (),
        measure_shift: bool = False,
        scheduling: SchedulerSettings | None = None,
        clock: Clock | None = None,
        slots: range | None = None,
        num_checked: int | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size={max_batch_size} must be at least 1")
        self.target = target
        self.proposer = settled(proposer or Autoregressive(), target, max_batch_size)
        self.acceptance = acceptance or Rejection()
        check_rule(self.acceptance, self.proposer)
        drafts = bool(self.proposer.num_draft_tokens)
        self.controller = controller if controller and drafts else Fixed()
        if drafts:
            self.controller.bind(self.proposer.kind, self.proposer.num_draft_tokens)
            if self.proposer.forecast is not None:
                self.controller.foresee(self.proposer.forecast)
        self.clock = clock or Clock(target.device)
        num_slots = max_batch_size if slots is None else slots.stop
        parts = (self.proposer, *self.proposer.proposers)
        target.allocate(num_slots, *(part.max_nodes for part in parts))
        self.proposer.bind(target, target.cache.num_slots)
        # What another engine learned may come from draws that equal this one's.
        self.proposer.reset()
        self.controller.reset()
        scheduling = scheduling or SchedulerSettings()
        self.isolates_requests = isolates_requests(self.proposer, self.controller, scheduling)
        slots = slots or range(target.cache.num_slots)
        prefixes = None
        if scheduling.reuse_prefixes:
            is_compiled = target.compiled or self.proposer.compiled
            prefixes = PrefixCache(target, self.proposer, slots, prefers_first=is_compiled)
        self.scheduler = Scheduler(
            target,
            scheduling,
            max_batch_size,
            seeds=Seeds(seed, self.isolates_requests),
            clock=self.clock,
            max_nodes=self.proposer.max_nodes,
            num_probe_nodes=self.proposer.num_probe_nodes,
            slots=slots,
            prefixes=prefixes,
        )
        self.prefill = Prefill(target, self.proposer, self.clock)
        self._recorder = StepRecorder(
            self.clock, self.scheduler, self.prefill, self.controller, observers
        )
        self._judge = Judge(
            self.acceptance, self.proposer, target.passes, measure_shift=measure_shift
        )
        self._check = ProposalCheck(self.proposer, target.vocab_size, num_checked)
        self._token_counts = TokenCounts(target.cache.num_slots, target.vocab_size, target.device)
        self._inbox = Inbox()
        self._guard = StepGuard(self._settle)
        self._relief = MemoryRelief(self.scheduler, self._retreat)

    def generate(
        self,
        requests: Iterable[Request | str | Sequence[int]],
        sampling: SamplingParams | None = None,
    ) -> Iterator[RequestOutput]:
        """Decode requests and yield their outputs in order of completion.

        Args:
            requests: Prompts as text or token ids, decoded with `sampling`, or `Request`s with
                their own.
        """
        pending: set[str] = set()
        try:
            for request in as_requests(requests, sampling, self.target.tokenizer):
                pending.add(self.submit(request))
            while pending:
                yield from self._pop_finished(pending)
                pending = self._inbox.live(pending)
                if pending:
                    self.step()
        finally:
            self.cancel(*pending)
            self._pop_finished(pending)

    def generate_all(
        self,
        requests: Iterable[Request | str | Sequence[int]],
        sampling: SamplingParams | None = None,
    ) -> list[RequestOutput]:
        """Decode requests as `generate` does, and return their outputs in the requests' order."""
        submitted = list(as_requests(requests, sampling, self.target.tokenizer))
        outputs = {output.id: output for output in self.generate(submitted)}
        return [outputs[request.id] for request in submitted]

    def submit(self, request: Request, arrival_time: float | None = None) -> str:
        """Queue a request, from any thread, and return its id.

        Args:
            arrival_time: Seconds on the engine's clock, by default now. It may lie in the past;
                queueing time counts from there.

        Raises:
            ValueError: If the request can never be served, or if its id belongs to another request
                whose output has not been taken.
        """
        self._guard.refuse_after_failure()
        check_served(request, self.acceptance, self.proposer)
        id = self._inbox.submit(request, lambda named: self.scheduler.prepare(named, arrival_time))
        self._guard.settle_if_idle()
        return id

    def cancel(self, *ids: str) -> None:
        """Drop these requests unless they have finished, from any thread.

        If a step is in progress they are dropped at its end.
        """
        self._inbox.cancel(ids)
        self._guard.settle_if_idle()

    def abort(self) -> None:
        """Drop every request that has not finished. Finished outputs stay until they are taken."""
        self._inbox.cancel()
        self._guard.settle_if_idle()

    @property
    def has_work(self) -> bool:
        """Return whether requests wait or run, or finished outputs have not been taken."""
        return bool(self._inbox) or self.scheduler.has_work

    def pop_finished(self) -> Iterator[RequestOutput]:
        """Remove and return the outputs of requests that have finished since the last call."""
        return self._pop_finished(None)

    @torch.inference_mode()
    def step(self) -> StepRecord | None:
        """Advance every request whose prompt is cached by at least one token.

        If memory runs out, one request fewer runs from the next step on; see `MemoryRelief`.

        Returns:
            The record of the step, or None if no request has finished prefill or memory ran out.

        Raises:
            RuntimeError: If another thread is in the middle of a step, or an earlier step failed.
            MemoryError: If memory ran out and fewer requests would not help.
        """
        with self._guard.step():
            clock = self.clock
            start = clock.now()
            judged = None
            with self._relief.attempt():
                judged = self._decode_step()
            if judged is None:
                return None
            self._relief.succeeded()
            batch, verdict = judged.batch, judged.delivery.verdict
            with clock.lap("commit"):
                self.target.commit(batch.slots, verdict)
            with clock.lap("propose"):
                self.proposer.observe(batch, judged.proposal, judged.output, verdict)
            record = self._recorder.record(start, judged)
            self._scrub(batch)
            self._release(self.scheduler.retire())
            return record

    def _decode_step(self) -> Judged | None:
        """Prefill, draft, verify and accept; return None if no request has finished prefill."""
        clock = self.clock
        self._stop_clock_for_captures()
        self._schedule_and_prefill()
        batch = self._batch()
        if not batch.rows:
            return None
        with clock.lap("control"):
            budget = self._budget(batch)
        batch.budget = self.prefill.run_lazily(batch, budget)
        with clock.lap("propose"):
            proposal = self._draft(batch, batch.budget)
        with clock.lap("verify"):
            grammars = GrammarMasks.of(batch, proposal)
            output = self._verify(batch, proposal)
        with clock.lap("accept"):
            delivery, shift = self._judge(batch, proposal, output, grammars)
        return Judged(batch, proposal, output, delivery, shift)

    def _stop_clock_for_captures(self) -> None:
        """Exclude captures of graphs from all times of the engine whose turn it is."""
        for model in (self.target, *self.proposer.models):
            if isinstance(model, SlotModel) and model.passes is not None:
                model.passes.graphs.paused = self.clock.paused

    def _schedule_and_prefill(self) -> None:
        plan = self.scheduler.plan()
        self._release(plan.freed)
        self.prefill.run(plan.chunks)

    def _batch(self) -> Batch:
        return Batch(
            self.scheduler.decoding,
            device=self.target.device,
            vocab_size=self.target.vocab_size,
            decode=self._decode,
            clock=self.clock,
            counts=self._token_counts,
        )

    def _budget(self, batch: Batch) -> list[int]:
        """Return the draft budget of each row, within what the scheduler grants."""
        proposer = self.proposer
        longest, kind = proposer.num_draft_tokens, proposer.kind
        return self.scheduler.grant(*draft_demand(self.controller, batch, longest, kind))

    def _draft(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = self.controller.trim(drafts_of(self.proposer, batch, budget))
        self._check(proposal, batch, budget)
        return proposal

    def _verify(self, batch: Batch, proposal: Proposal) -> ModelOutput:
        layers = self.proposer.hidden_layers
        return self.target.forward(batch.slots, proposal, hidden_layers=layers)

    def _scrub(self, batch: Batch) -> None:
        """Zero the slots of rows that failed: a NaN leaks through any mask."""
        failed = [row.slot for row in batch.rows if row.finish_reason == FAILED]
        if failed:
            self.target.cache.scrub(failed)
            self.proposer.scrub(failed)

    def _release(self, slots: Sequence[int]) -> None:
        if slots:
            self.prefill.release(slots)
            self.proposer.finish(slots)
            if self.scheduler.prefixes is None:
                for slot in slots:
                    self.proposer.reuse(slot, slot, 0)

    def _retreat(self, slots: Sequence[int]) -> None:
        """Free what a step without enough memory held for its slots; no figure counts it."""
        self._release(slots)
        self._forget_counts()

    def _forget_counts(self) -> None:
        self.prefill.forget_counts()
        self.clock.forget_laps()

    def _settle(self) -> None:
        """Queue submitted requests, and drop cancelled ones that have not finished."""
        if self._inbox:
            mail = self._inbox.pop()
            for row in mail.new:
                self.scheduler.submit(row)
            finished = {row for row, _ in self.scheduler.finished}
            dropped = [row for row in mail.cancelled if row not in finished]
            self._inbox.release(row.id for row in dropped)
            self._release(self.scheduler.drop(dropped))
        if not (self.scheduler.waiting or self.scheduler.running):
            self._release(self.scheduler.drop(()))  # slots that a failed step left behind
            self._forget_counts()
            self._relief.reset()
            self._guard.forgive()

    def _decode(self, token_ids: list[int]) -> str:
        if self.target.tokenizer is None:
            return ""
        return str(self.target.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _pop_finished(self, ids: Collection[str] | None) -> Iterator[RequestOutput]:
        """Remove the finished outputs of these requests, or of all, and return them."""
        popped = self.scheduler.pop_finished(lambda row: ids is None or row.id in ids)
        self._inbox.release(row.id for row, _ in popped)
        return (RequestOutput.of(row, counts, self._decode) for row, counts in popped)
