"""Decode requests: draft, verify in one pass, accept, keep what was accepted. Knows no method by name."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance import RULES, AcceptanceSampler, LossySampler, Rejection, shift_of_tokens
from specresearch.batch import Batch, Request, RequestState, TokenLogprob
from specresearch.controllers import Adaptive, Controller, Fixed
from specresearch.engine.scheduler import Scheduler
from specresearch.metrics import Counts, RequestRecord, StepClock, StepRecord
from specresearch.models.causal_lm import CausalLM
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.proposers import Autoregressive, Proposer
from specresearch.sampling import SamplingParams
from specresearch.shift_records import StepShift


@dataclass(frozen=True)
class RequestOutput:
    """A finished request. text: the output decoded, cut before a stop string ("" without a tokenizer)."""

    id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...]
    record: RequestRecord


class Engine:
    """One target, one way of drafting (none: plain decoding), one acceptance rule, one controller.

    max_batch_size: requests decoded together. seed: for requests that bring none of their own.
    on_step: called with the record of every step. measure_shift: records say how far a lossy rule moved the output.
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
        self.on_step = on_step
        is_measured = measure_shift and not self.acceptance.lossless
        self._lossy = self.acceptance if is_measured and isinstance(self.acceptance, LossySampler) else None
        self.scheduler = Scheduler(target, max_batch_size, seed)
        target.allocate(max_batch_size, self.proposer.max_nodes)
        self.proposer.bind(target, target.cache.num_slots)

    def generate(
        self, requests: Iterable[Request | str | Sequence[int]], sampling: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Decode all requests; outputs come as they finish.

        requests: prompts as text or token ids, decoded with `sampling`, or `Request`s with their own.
        """
        if isinstance(requests, str):
            raise ValueError("generate takes a list of prompts; put the one prompt into a list")
        if self.scheduler.has_work:
            raise RuntimeError(
                "this engine is still decoding the requests of another call; exhaust or close that iterator first"
            )
        try:
            for number, request in enumerate(requests):
                self.scheduler.submit(self._as_request(request, sampling or SamplingParams(), str(number)))
            while self.scheduler.has_work:
                self.step()
                yield from self._outputs()
        finally:
            self.abort()

    @torch.inference_mode()
    def step(self) -> StepRecord:
        """One round for every running request: at least one token each."""
        prefill_time = self._prefill(self.scheduler.admit())
        clock = StepClock(self.target.device)
        batch = Batch(self.scheduler.running, self.target.device, self.target.vocab_size, self._decode)
        proposal = self._trim(self.proposer.propose(batch, self._budget(batch)))
        clock.lap("propose")
        output = self.target.forward(batch.slots, proposal, hidden_layers=self.proposer.hidden_layers)
        clock.lap("verify")
        verdict = self.acceptance(proposal, output.logits, batch.sampling)
        delivery = batch.append(proposal, verdict)
        self._record_logprobs(batch, proposal, output.logits, delivery.verdict, delivery.num_new)
        clock.lap("accept")
        self.target.commit(batch.slots, delivery.verdict)
        clock.lap("commit")
        self.proposer.observe(batch, proposal, output, delivery.verdict)
        clock.lap("propose")
        times = clock.stop(prefill_time)
        shift = self._shift(batch, proposal, output.logits, verdict, delivery.num_new)
        record = StepRecord.of(batch, proposal, delivery, times, shift)
        self._account(batch, record)
        return record

    def abort(self) -> None:
        """Drop every request that has not finished, queued or running."""
        self.scheduler.waiting.clear()
        for row in self.scheduler.running:
            row.finish_reason = row.finish_reason or "aborted"
        self._retire()

    def _check_rule(self) -> None:
        kind, rule = self.proposer.kind, self.acceptance
        reason = rule.refuses(kind)
        if reason:
            others = [name for name, other in RULES.items() if other.lossless and other().refuses(kind) is None]
            raise ValueError(
                f"acceptance rule {type(rule).__name__} cannot judge the drafts of {type(self.proposer).__name__}: {reason}; "
                f"use acceptance={' or '.join(others)}"
            )

    def _as_request(self, request: Request | str | Sequence[int], sampling: SamplingParams, id: str) -> Request:
        if isinstance(request, Request):
            return request
        if isinstance(request, str):
            if self.target.tokenizer is None:
                raise ValueError("this target has no tokenizer; give prompts as token ids")
            return Request(self.target.tokenizer(request)["input_ids"], sampling, id)
        return Request(request, sampling, id)

    def _decode(self, token_ids: list[int]) -> str:
        tokenizer = self.target.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=True))

    def _budget(self, batch: Batch) -> list[int]:
        """What the request asks for, or else the controller, within what the proposer can do and the request has room for."""
        most, trees = self.proposer.num_draft_tokens, self.proposer.kind.trees
        own = [row.request.num_draft_tokens for row in batch.rows]
        asked = [n if o is None else o for n, o in zip(self.controller.budget(batch), own, strict=True)]
        limits = [most if trees and room else room for room in batch.room]
        return [min(most if want is None else want, most, limit) for want, limit in zip(asked, limits, strict=True)]

    def _trim(self, proposal: Proposal) -> Proposal:
        return self.controller.trim(proposal) if isinstance(self.controller, Adaptive) else proposal

    def _prefill(self, admitted: list[RequestState]) -> float:
        """Cache all of each new prompt but its last token, which is the root of the first step. Returns seconds."""
        if not admitted:
            return 0.0
        begin = time.perf_counter()
        prompts = [row.tokens[:-1] for row in admitted]
        slots = [row.slot for row in admitted]
        layers = self.proposer.hidden_layers
        output = self.target.extend(slots, prompts, want_logits=False, hidden_layers=layers) if any(prompts) else None
        self.proposer.start(admitted, output)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        seconds = time.perf_counter() - begin
        for row in admitted:
            row.prefill_time = seconds
        return seconds

    def _record_logprobs(
        self,
        batch: Batch,
        proposal: Proposal,
        logits: Float[Tensor, "B N V"],
        verdict: Verdict,
        num_new: Sequence[int],
    ) -> None:
        """log p of the delivered tokens: token i was predicted by node i of the accepted path."""
        for b, row in enumerate(batch.rows):
            num_top = row.request.sampling.logprobs
            if num_top is None:
                continue
            nodes = verdict.path[b, : num_new[b]].to(logits.device, non_blocking=True)
            tokens = upload(row.tokens[-num_new[b] :], logits.device)[:, None]
            log_probs = logits[b, nodes].float().log_softmax(-1)
            values, ids = log_probs.topk(num_top)
            table = torch.cat([log_probs.gather(1, tokens), values, ids.double()], dim=1).tolist()  # sync
            for own, *rest in table:
                top = zip(map(int, rest[num_top:]), rest[:num_top], strict=True)
                row.logprobs.append(TokenLogprob(own, tuple(top)))

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
        seconds = time.perf_counter() - begin
        for row in batch.rows:
            row.arrival_time += seconds
            row.token_times = [moment + seconds for moment in row.token_times]
        return StepShift(rows, seconds)

    def _account(self, batch: Batch, record: StepRecord) -> None:
        for b, row in enumerate(batch.rows):
            self.scheduler.counts[row].add_step(
                record.num_draft_tokens[b],
                record.draft_depth[b],
                record.num_accepted_tokens[b],
                record.num_new_tokens[b],
                record.expected_acceptance[b] if record.expected_acceptance is not None else None,
                record.shift.rows[b] if record.shift is not None else None,
            )
        self.controller.observe(record)
        if self.on_step is not None:
            self.on_step(record)

    def _retire(self) -> list[tuple[RequestState, Counts]]:
        finished = self.scheduler.retire()
        if finished:
            self.proposer.finish([row.slot for row, _ in finished])
        return finished

    def _outputs(self) -> Iterator[RequestOutput]:
        for row, counts in self._retire():
            assert row.finish_reason is not None
            text = self._decode(row.output_ids)[: row.stop_at]
            record = RequestRecord.of(row, counts)
            yield RequestOutput(row.id, tuple(row.output_ids), text, row.finish_reason, tuple(row.logprobs), record)
