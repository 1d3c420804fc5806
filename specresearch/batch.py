"""Requests, their state while they are decoded, and the batch of one step."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.clock import Clock
from specresearch.proposal import Proposal, Verdict, upload
from specresearch.sampling import SamplingBatch, SamplingParams

TARGET_FAULT, DRAFTER_FAULT = 1, 2
FAULTS = {
    TARGET_FAULT: "the target's logits are NaN or infinite; check its weights and its dtype "
    "(float16 overflows where bfloat16 and float32 do not)",
    DRAFTER_FAULT: "the drafter's probabilities are NaN or infinite; check its weights and "
    "its dtype",
}
FAILED = "error"  # finish reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A prompt in token ids and how to continue it.

    Attributes:
        id: Unique among the requests of an engine whose outputs have not been taken; "" lets the
            engine choose one.
        num_draft_tokens: Drafts for this request in every step, in place of the controller's
            number and at most as many as the proposer makes. 0 decodes plainly; None leaves the
            number to the controller.
        category: The request's class in a mixed workload, for results.

    Raises:
        ValueError: If the prompt is empty or not a list of token ids, or if `num_draft_tokens` is
            not a count.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    id: str = ""
    num_draft_tokens: int | None = None
    category: str = ""

    def __post_init__(self) -> None:
        if len(self.prompt_ids) == 0:
            raise ValueError(
                f"request {self.id!r} has an empty prompt; give it at least one token (such as the "
                "BOS token)"
            )
        prompt = np.asarray(self.prompt_ids)
        if prompt.dtype.kind not in "iu" or prompt.ndim != 1:
            raise ValueError(
                f"request {self.id!r} has a prompt of {prompt.dtype} in {prompt.ndim} dimensions; "
                "give one list of token ids, which are whole numbers"
            )
        wanted = self.num_draft_tokens
        is_count = isinstance(wanted, Integral) and not isinstance(wanted, bool) and wanted >= 0
        if wanted is not None and not is_count:
            raise ValueError(
                f"request {self.id!r} has num_draft_tokens={wanted!r}; it must be 0 (plain "
                "decoding) or above, or None to leave it to the controller"
            )


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a delivered token under the target's raw logits.

    Attributes:
        top: The likeliest tokens, as pairs of id and log-probability.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class RequestState:
    """A request being decoded. The engine owns it; proposers read it.

    Attributes:
        slot: Slot of the target's cache; -1 while the request waits.
        arrival_time: When it arrived, on the engine's clock.
        tokens: Prompt and output so far. The last token is the root of the next tree: its keys and
            values are not cached yet.
        finish_reason: "eos", "stop", "length" or "error" once the request has finished.
        error: Why the request failed.
        stop_at: Characters of the output before a stop string.
        token_times: When each output token was delivered, on the engine's clock.
        prefill_time: Seconds of the prefill passes that it took part in.
        queue_time: Seconds before it first got a slot.
        is_prefilled: True if everything before the root is cached.
        end_ids: Tokens that end the output.
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
        self.end_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self.end_ids |= self.eos_token_ids
        room = self.max_total_tokens - self.num_prompt_tokens
        self.max_new_tokens = min(sampling.max_new_tokens, room)

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
        """Return the last `num` tokens, which may be none."""
        return self.tokens[len(self.tokens) - num :]

    @property
    def num_remaining(self) -> int:
        return self.max_new_tokens + self.num_prompt_tokens - len(self.tokens)

    def fail(self, reason: str) -> None:
        """End the request with what has been generated so far."""
        self.finish_reason = FAILED
        self.error = f"request {self.id!r} failed after {self.num_generated} tokens: {reason}"

    def deliver(
        self, new: Sequence[int], decode: Callable[[list[int]], str] | None, now: float
    ) -> int:
        """Append tokens that arrive at `now`; returns how many were appended.

        Whatever goes wrong, such as a tokenizer that cannot decode, fails this row alone.
        """
        before = len(self.tokens)
        try:
            self.append(new, decode)
        except Exception as error:
            logger.exception("request %r", self.id)
            self.fail(f"{type(error).__name__}: {error}")
        num_appended = len(self.tokens) - before
        self.token_times.extend([now] * num_appended)
        return num_appended

    def append(self, new: Sequence[int], decode: Callable[[list[int]], str] | None) -> int:
        """Append tokens up to the one that ends the output; returns how many were appended."""
        stop = self.request.sampling.stop
        max_tokens = self.num_prompt_tokens + self.max_new_tokens
        for num_appended, token in enumerate(new, start=1):
            self.tokens.append(token)
            if token in self.end_ids:
                self.finish_reason = "eos" if token in self.eos_token_ids else "stop"
            elif stop and decode is not None and self._contains_stop_string(stop, decode):
                self.finish_reason = "stop"
            elif len(self.tokens) >= max_tokens:
                self.finish_reason = "length"
            if self.finish_reason:
                return num_appended
        return len(new)

    def _contains_stop_string(
        self, stop: Sequence[str], decode: Callable[[list[int]], str]
    ) -> bool:
        # Decoding the whole output for every token would take quadratic time.
        tail = self._tail(max(map(len, stop)), decode)
        if not any(text in tail for text in stop):
            return False
        text = decode(self.output_ids)
        positions = [text.find(string) for string in stop if string in text]
        self.stop_at = min(positions) if positions else None
        return bool(positions)

    def _tail(self, num_characters: int, decode: Callable[[list[int]], str]) -> str:
        """Return the text of the last token and at least so many characters before it.

        A token may stand for no text, as special tokens do, or for a part of a character.
        """
        output = self.output_ids
        num_last = len(decode(output[-1:]))
        num_tokens = num_characters + 1
        tail = decode(output[-num_tokens:])
        while num_tokens < len(output) and len(tail) - num_last <= num_characters:
            num_tokens *= 2
            tail = decode(output[-num_tokens:])
        return tail


class Batch:
    """The rows of one step, with their tokens as tensors.

    Attributes:
        formed_at: When the batch was formed, on the clock.
    """

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
        """Return the last committed token of each row."""
        return upload([[row.tokens[-1]] for row in self.rows], self.device)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Return how many drafts each row can still use.

        One token of every step is the target's own.
        """
        return tuple([max(row.num_remaining - 1, 0) for row in self.rows])

    @cached_property
    def sampling(self) -> SamplingBatch:
        """Return the rows' sampling settings and the state of their draws."""
        params = [row.request.sampling for row in self.rows]
        prompt_counts = output_counts = None
        if any(own.has_penalty for own in params):
            prompts: list[list[int]] = []
            outputs: list[list[int]] = []
            for row, own in zip(self.rows, params, strict=True):
                prompts.append(row.tokens[: row.num_prompt_tokens] if own.has_penalty else [])
                outputs.append(row.output_ids if own.has_penalty else [])
            prompt_counts, output_counts = self._counts(prompts), self._counts(outputs)
        return SamplingBatch(
            params=params,
            seeds=[row.seed for row in self.rows],
            positions=[row.num_generated for row in self.rows],
            device=self.device,
            prompt_counts=prompt_counts,
            output_counts=output_counts,
        )

    def _counts(self, tokens: Sequence[list[int]]) -> Int[Tensor, "B V"]:
        """Count the occurrences of every token in each row."""
        row = np.repeat(np.arange(len(tokens)), [len(part) for part in tokens])
        flat = np.fromiter(chain.from_iterable(tokens), np.int64, len(row))
        num_bins = len(tokens) * self.vocab_size
        counts = np.bincount(row * self.vocab_size + flat, minlength=num_bins)
        return upload(counts.reshape(len(tokens), self.vocab_size), self.device)

    def append(
        self, proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None = None
    ) -> "Delivery":
        """Append accepted and new tokens, cut at end tokens, stop strings and limits.

        This brings the verdict to the host.

        Args:
            faults: For each row a key of `FAULTS`, which fails the row, or 0.
        """
        width = verdict.path.shape[1]
        packed, expected = _to_host(proposal, verdict, faults)
        counts: list[int] = []
        now = self.clock.now()
        for row, values in zip(self.rows, packed.tolist(), strict=True):
            num_accepted, next_token, _, fault, *rest = values
            accepted = rest[width + 1 : width + 1 + num_accepted]
            if fault:
                row.fail(FAULTS[fault])
                counts.append(0)
            else:
                counts.append(row.deliver([*accepted, next_token], self.decode, now))
        packed[:, 0].clamp_(max=torch.tensor(counts))
        is_behind = torch.arange(width) > packed[:, :1]
        path = packed[:, 4 : 4 + width].masked_fill_(is_behind, -1)
        cut = Verdict(path, packed[:, 0], packed[:, 1], expected)
        return Delivery(cut, tuple(counts), tuple(packed[:, 2].tolist()))


def _to_host(
    proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None
) -> tuple[Int[Tensor, "B W"], Float[Tensor, "B D"] | None]:
    """Return everything that the host needs of a verdict, in one transfer.

    The columns are the number accepted, the next token, the number of nodes, the fault, the path,
    and the tokens on it.
    """
    tokens = proposal.token_ids.gather(1, verdict.path.clamp(min=0))
    faults = torch.zeros_like(verdict.num_accepted) if faults is None else faults
    scalars = [verdict.num_accepted, verdict.next_token, proposal.lengths, faults]
    packed = torch.cat([torch.stack(scalars, dim=1), verdict.path, tokens], dim=1)
    if verdict.expected is None:
        return packed.cpu(), None  # sync
    # Doubles hold every token id exactly.
    both = torch.cat([packed.double(), verdict.expected.double()], dim=1).cpu()  # sync
    width = packed.shape[1]
    return both[:, :width].long(), both[:, width:]


@dataclass(frozen=True)
class Delivery:
    """The verdict on the host, without the accepted drafts behind the end of an output.

    Attributes:
        num_new: Tokens that each row received, the target's own included; 0 for a row that failed.
        lengths: Nodes that each row proposed, root included.
    """

    verdict: Verdict
    num_new: tuple[int, ...]
    lengths: tuple[int, ...]
