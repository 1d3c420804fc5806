"""The requests of one step: what they asked for, what they have produced, and where an accepted run is cut."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.clock import Clock
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.sampling import SamplingBatch, SamplingParams

TARGET_FAULT, DRAFTER_FAULT = 1, 2
FAULTS = {
    TARGET_FAULT: "the target's logits are NaN or infinite; check its weights and its dtype (float16 overflows where bfloat16 "
    "and float32 do not)",
    DRAFTER_FAULT: "the drafter's probabilities are NaN or infinite; check its weights and its dtype",
}
FAILED = "error"  # the finish reason of a request that could not go on

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A prompt in token ids and how to continue it. Raises ValueError for a prompt that is empty or not
    a sequence of whole numbers, and for a `num_draft_tokens` that is no count.

    id: unique among the requests of an engine whose outputs have not been taken; "" lets the engine choose.
    num_draft_tokens: drafts for this request at every step, at most what the proposer makes, in place of the controller's
    number; 0 = decode it plainly, None = as the controller says.
    category: its class in a mixed workload, for results.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    id: str = ""
    num_draft_tokens: int | None = None
    category: str = ""

    def __post_init__(self) -> None:
        if len(self.prompt_ids) == 0:
            raise ValueError(
                f"request {self.id!r} has an empty prompt; give it at least one token (such as the BOS token)"
            )
        prompt = np.asarray(self.prompt_ids)
        if prompt.dtype.kind not in "iu" or prompt.ndim != 1:
            raise ValueError(
                f"request {self.id!r} has a prompt of {prompt.dtype} in {prompt.ndim} dimensions; give one "
                "list of token ids, which are whole numbers"
            )
        wanted = self.num_draft_tokens
        is_count = isinstance(wanted, Integral) and not isinstance(wanted, bool) and wanted >= 0
        if wanted is not None and not is_count:
            raise ValueError(
                f"request {self.id!r} has num_draft_tokens={wanted!r}; it must be 0 (plain decoding) or above, "
                "or None to leave it to the controller"
            )


@dataclass(frozen=True)
class TokenLogprob:
    """log p of an emitted token under the target's raw logits, and the likeliest alternatives (id, log p)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class RequestState:
    """A request being decoded. The engine owns it; proposers read it.

    slot: its place in the target's cache; -1 while it waits.
    tokens: prompt and output so far. The last one is the root of the next tree: its keys and values are not cached yet.
    arrival_time, token_times: when it came, and when each output token was delivered, seconds of the engine's clock.
    is_prefilled: everything before the root is cached. queue_time: seconds before it first got a slot.
    finish_reason: eos, stop or length once it has finished, or error; error: why, then. stop_at: characters of the output before
    a stop string.
    """

    request: Request
    slot: int
    seed: int
    eos_token_ids: frozenset[int]
    max_total_tokens: int
    arrival_time: float = 0.0
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    stop_at: int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    prefill_time: float = 0.0
    queue_time: float = 0.0
    num_preemptions: int = 0
    is_prefilled: bool = False
    num_prompt_tokens: int = field(init=False)
    max_new_tokens: int = field(init=False)
    end_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [int(token) for token in self.request.prompt_ids]
        self.num_prompt_tokens = len(self.tokens)
        sampling = self.request.sampling
        self.end_ids = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else self.eos_token_ids
        )
        self.max_new_tokens = min(
            sampling.max_new_tokens, self.max_total_tokens - self.num_prompt_tokens
        )

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def newest(self, num: int) -> list[int]:
        """The last `num` tokens, which may be none."""
        return self.tokens[len(self.tokens) - num :]

    @property
    def num_remaining(self) -> int:
        return self.max_new_tokens + self.num_prompt_tokens - len(self.tokens)

    def fail(self, reason: str) -> None:
        """End here, with what has been generated so far."""
        self.finish_reason = FAILED
        self.error = f"request {self.id!r} failed after {self.num_generated} tokens: {reason}"

    def deliver(
        self, new: Sequence[int], decode: Callable[[list[int]], str] | None, now: float
    ) -> int:
        """`take` at a point in time. Whatever goes wrong, such as a tokenizer that cannot decode, fails this row alone."""
        before = len(self.tokens)
        try:
            self.take(new, decode)
        except Exception as error:
            logger.exception("request %r", self.id)
            self.fail(f"{type(error).__name__}: {error}")
        taken = len(self.tokens) - before
        self.token_times.extend([now] * taken)
        return taken

    def take(self, new: Sequence[int], decode: Callable[[list[int]], str] | None) -> int:
        """Append tokens up to the one that ends the output; returns how many were taken and sets `finish_reason`."""
        stop = self.request.sampling.stop
        max_tokens = self.num_prompt_tokens + self.max_new_tokens
        for taken, token in enumerate(new, start=1):
            self.tokens.append(token)
            if token in self.end_ids:
                self.finish_reason = "eos" if token in self.eos_token_ids else "stop"
            elif stop and decode is not None and self._meets_stop_string(stop, decode):
                self.finish_reason = "stop"
            elif len(self.tokens) >= max_tokens:
                self.finish_reason = "length"
            if self.finish_reason:
                return taken
        return len(new)

    def _meets_stop_string(self, stop: Sequence[str], decode: Callable[[list[int]], str]) -> bool:
        """Decode no more of the output than the text that a stop string could have ended in."""
        tail = self._tail(max(map(len, stop)), decode)
        if not any(text in tail for text in stop):
            return False
        text = decode(self.output_ids)
        found = [text.find(s) for s in stop if s in text]
        self.stop_at = min(found) if found else None
        return bool(found)

    def _tail(self, num_characters: int, decode: Callable[[list[int]], str]) -> str:
        """The text of the last token, and at least so many characters before it if there are.

        A token may stand for no text, as special tokens do, or for a part of a character.
        """
        output = self.output_ids
        num_own = len(decode(output[-1:]))
        num_tokens = num_characters + 1
        tail = decode(output[-num_tokens:])
        while num_tokens < len(output) and len(tail) - num_own <= num_characters:
            num_tokens *= 2
            tail = decode(output[-num_tokens:])
        return tail


class Batch:
    """The rows of one step, with their tokens as tensors."""

    def __init__(
        self,
        rows: Sequence[RequestState],
        device: torch.device,
        vocab_size: int,
        decode: Callable[[list[int]], str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rows = rows
        self.device = device
        self.vocab_size = vocab_size
        self.decode = decode
        self.clock = clock or Clock()
        self.formed_at = self.clock.now()
        self.slots = tuple(row.slot for row in rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def roots(self) -> Int[Tensor, "B 1"]:
        """The last committed token of each row."""
        return upload([[row.tokens[-1]] for row in self.rows], self.device)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """How many drafts each row could still use: one token of every step comes from the target itself."""
        return tuple([max(row.num_remaining - 1, 0) for row in self.rows])

    @cached_property
    def sampling(self) -> SamplingBatch:
        params = [row.request.sampling for row in self.rows]
        prompt_counts = output_counts = None
        if any(p.has_penalty for p in params):
            penalized = [
                row if p.has_penalty else None for row, p in zip(self.rows, params, strict=True)
            ]
            prompt_counts = self._counts(
                [row.tokens[: row.num_prompt_tokens] if row else [] for row in penalized]
            )
            output_counts = self._counts([row.output_ids if row else [] for row in penalized])
        return SamplingBatch(
            params,
            [row.seed for row in self.rows],
            [row.num_generated for row in self.rows],
            self.device,
            prompt_counts,
            output_counts,
        )

    def _counts(self, tokens: Sequence[list[int]]) -> Int[Tensor, "B V"]:
        """Occurrences of every token in each row."""
        row = np.repeat(np.arange(len(tokens)), [len(part) for part in tokens])
        flat = np.fromiter(chain.from_iterable(tokens), np.int64, len(row))
        counts = np.bincount(row * self.vocab_size + flat, minlength=len(tokens) * self.vocab_size)
        return upload(counts.reshape(len(tokens), self.vocab_size), self.device)

    def append(
        self, proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None = None
    ) -> "Delivery":
        """Commit accepted and new tokens, cut at end tokens, stop strings and limits. Brings the verdict to the host.

        faults: for each row a key of `FAULTS`, which fails the row, or 0.
        """
        tokens = proposal.token_ids.gather(1, verdict.path.clamp(min=0))
        columns = [
            verdict.num_accepted[:, None],
            verdict.next_token[:, None],
            proposal.lengths[:, None],
        ]
        columns.append(torch.zeros_like(columns[0]) if faults is None else faults[:, None])
        width = verdict.path.shape[1]
        packed = torch.cat([*columns, verdict.path, tokens], dim=1)
        expected = None
        if verdict.expected is None:
            packed = packed.cpu()  # sync
        else:  # in one transfer; doubles hold every token id exactly
            both = torch.cat([packed.double(), verdict.expected.double()], dim=1).cpu()  # sync
            packed, expected = both[:, : packed.shape[1]].long(), both[:, packed.shape[1] :]
        counts: list[int] = []
        now = self.clock.now()
        for row, (num_accepted, next_token, _, fault, *rest) in zip(
            self.rows, packed.tolist(), strict=True
        ):
            accepted = rest[width + 1 : width + 1 + num_accepted]
            if fault:
                row.fail(FAULTS[fault])
                counts.append(0)
            else:
                counts.append(row.deliver([*accepted, next_token], self.decode, now))
        packed[:, 0].clamp_(max=torch.tensor(counts))
        path = packed[:, 4 : 4 + width].masked_fill_(torch.arange(width) > packed[:, :1], -1)
        clipped = Verdict(path, packed[:, 0], packed[:, 1], expected)
        return Delivery(clipped, tuple(counts), tuple(packed[:, 2].tolist()))


@dataclass(frozen=True)
class Delivery:
    """The verdict on the host, with accepted drafts behind an end token taken back.

    num_new: tokens each row received, the target's own included; 0 for a row that failed. lengths: nodes each row had proposed,
    root included.
    """

    verdict: Verdict
    num_new: tuple[int, ...]
    lengths: tuple[int, ...]
