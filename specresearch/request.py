"""Requests, and their state while they are decoded."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from specresearch.grammar import Grammar, GrammarState
from specresearch.sampling_params import SamplingParams

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
        grammar: Constrains the output; None: unconstrained. The output ends when its grammar is
            complete, also with `ignore_eos`.

    Raises:
        ValueError: If the prompt is empty or not a list of token ids, or if `num_draft_tokens` is
            not a count.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    id: str = ""
    num_draft_tokens: int | None = None
    category: str = ""
    grammar: Grammar | None = None

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
        num_drafts = self.num_draft_tokens
        is_integer = isinstance(num_drafts, Integral) and not isinstance(num_drafts, bool)
        if num_drafts is not None and not (is_integer and num_drafts >= 0):
            raise ValueError(
                f"request {self.id!r} has num_draft_tokens={num_drafts!r}; it must be 0 (plain "
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
        max_new_tokens: Output tokens that the request's own limit and the context allow.
        end_ids: Tokens that end the output.
        grammar: The parser state of its grammar; None if it has none.
        num_reused: Its first tokens that were cached when it was last admitted.
        reused_from: The slot that still has to be copied from; None if there is none.
        total_reused: Tokens that were cached when it was admitted, over all admissions.
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
    num_reused: int = 0
    reused_from: int | None = None
    total_reused: int = 0
    num_prompt_tokens: int = field(init=False)
    max_new_tokens: int = field(init=False)
    end_ids: frozenset[int] = field(init=False)
    grammar: GrammarState | None = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.tokens = list(map(int, self.request.prompt_ids))
        self.num_prompt_tokens = len(self.tokens)
        context_left = self.max_total_tokens - self.num_prompt_tokens
        self.max_new_tokens = min(sampling.max_new_tokens, context_left)
        self.end_ids = frozenset(sampling.stop_token_ids)
        grammar = self.request.grammar
        self.grammar = None if grammar is None else grammar.start()
        if grammar is not None or not sampling.ignore_eos:
            self.end_ids |= self.eos_token_ids

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
        return self.max_new_tokens - self.num_generated

    def fail(self, reason: str) -> None:
        """End the request with what has been generated so far."""
        self.finish_reason = FAILED
        self.error = f"request {self.id!r} failed after {self.num_generated} tokens: {reason}"

    def deliver(
        self, new: Sequence[int], decode: Callable[[list[int]], str] | None, now: float
    ) -> int:
        """Append tokens delivered at time `now`, and return how many were appended.

        An error, such as a tokenizer that cannot decode, fails this request alone.
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
        """Append tokens up to the one that ends the output, and return how many were appended."""
        stop = self.request.sampling.stop
        for num_appended, token in enumerate(new, start=1):
            self.tokens.append(token)
            if token in self.end_ids:
                self.finish_reason = "eos" if token in self.eos_token_ids else "stop"
            elif stop and decode is not None and self._contains_stop_string(stop, decode):
                self.finish_reason = "stop"
            elif self.num_remaining <= 0:
                self.finish_reason = "length"
            if self.finish_reason:
                return num_appended
        return len(new)

    def _contains_stop_string(
        self, stop: Sequence[str], decode: Callable[[list[int]], str]
    ) -> bool:
        # Decoding the whole output for every token would take quadratic time.
        tail = self._tail(max(map(len, stop)), decode)
        if not any(string in tail for string in stop):
            return False
        text = decode(self.output_ids)
        positions = [text.find(string) for string in stop if string in text]
        self.stop_at = min(positions, default=None)
        return self.stop_at is not None

    def _tail(self, num_characters: int, decode: Callable[[list[int]], str]) -> str:
        """Return the text of the last token and at least `num_characters` before it.

        Special tokens decode to nothing, and a character may span several tokens.
        """
        output = self.output_ids
        num_last = len(decode(output[-1:]))
        num_tokens = num_characters + 1
        tail = decode(output[-num_tokens:])
        while num_tokens < len(output) and len(tail) - num_last <= num_characters:
            num_tokens *= 2
            tail = decode(output[-num_tokens:])
        return tail
