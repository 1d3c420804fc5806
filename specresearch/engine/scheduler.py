"""Which requests run: a queue, and a slot of the target's cache for each request that left it."""

import time
from collections import deque
from dataclasses import dataclass, field

from specresearch.batch import Request, RequestState
from specresearch.metrics import Counts
from specresearch.models.causal_lm import CausalLM


@dataclass(eq=False)
class Scheduler:
    """First come, first served. A slot freed by a finished request is taken at the next step."""

    target: CausalLM
    max_batch_size: int
    seed: int
    waiting: deque[tuple[Request, int, float]] = field(default_factory=deque)
    running: list[RequestState] = field(default_factory=list)
    counts: dict[RequestState, Counts] = field(default_factory=dict)
    num_submitted: int = 0

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError when its prompt leaves no room for a single token."""
        limit = self.target.max_len
        if len(request.prompt_ids) >= limit:
            raise ValueError(
                f"request {request.id!r} has a prompt of {len(request.prompt_ids)} tokens and max_len is {limit}; "
                "shorten the prompt or raise target.max_len"
            )
        vocab_size = self.target.vocab_size
        strange = next((token for token in request.prompt_ids if not 0 <= token < vocab_size), None)
        if strange is not None:
            raise ValueError(
                f"request {request.id!r} holds token id {strange}, outside this target's vocabulary of {vocab_size}; "
                "tokenize the prompt with the target's own tokenizer"
            )
        sampling = request.sampling
        if sampling.stop and self.target.tokenizer is None:
            raise ValueError(
                f"request {request.id!r} has stop strings and this target no tokenizer; use stop_token_ids"
            )
        if sampling.logprobs is not None and sampling.logprobs > vocab_size:
            raise ValueError(
                f"request {request.id!r} asks for the {sampling.logprobs} likeliest tokens of a vocabulary of {vocab_size}"
            )
        self.waiting.append((request, self.num_submitted, time.perf_counter()))
        self.num_submitted += 1

    def admit(self) -> list[RequestState]:
        """Move requests from the queue to free slots; they still have to be prefilled."""
        admitted = []
        while self.waiting and len(self.running) + len(admitted) < self.max_batch_size:
            slot = self.target.acquire()
            if slot is None:
                break
            request, number, arrival = self.waiting.popleft()
            seed = request.sampling.seed if request.sampling.seed is not None else self.seed + number
            state = RequestState(request, slot, seed, self.target.eos_token_ids, self.target.max_len, arrival)
            self.counts[state] = Counts()
            admitted.append(state)
        if not admitted and not self.running:
            raise RuntimeError("every slot of the target is in use by another engine; finish its requests first")
        if admitted:
            self.running = sorted([*self.running, *admitted], key=lambda row: row.slot)
        return admitted

    def retire(self) -> list[tuple[RequestState, Counts]]:
        """Take out the requests that have finished and free their slots."""
        finished = [row for row in self.running if row.finish_reason]
        if finished:
            self.running = [row for row in self.running if not row.finish_reason]
            for row in finished:
                self.target.release(row.slot)
        return [(row, self.counts.pop(row)) for row in finished]

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)
