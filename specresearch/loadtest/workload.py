"""The requests of a load test: prompts of one dataset, or of several classes in given shares."""

import random
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from specresearch.data import PromptDataset
from specresearch.data.traces import TraceRow
from specresearch.loadtest.prompt_pool import MIN_TEXT, Pool, PromptPool
from specresearch.request import Request
from specresearch.sampling import SamplingParams, derive_seed


@runtime_checkable
class PromptedModel(Protocol):
    """What prompts are made for: a `CausalLM`, or a model on a server.

    Attributes:
        max_len: The longest prompt and output in tokens.
    """

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None: ...

    @property
    def max_len(self) -> int: ...


@dataclass(frozen=True)
class RequestClass:
    """Requests of one kind.

    Attributes:
        share: Weight among the classes.
        num_draft_tokens: As in `Request`.
    """

    dataset: PromptDataset
    sampling: SamplingParams
    name: str = ""
    share: float = 1.0
    num_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < float("inf"):
            raise ValueError(
                f"classes.{self.name}.share={self.share} must be above 0; leave the class out "
                "instead"
            )


@dataclass(frozen=True)
class PlannedRequest:
    """A request of every pass.

    Attributes:
        row: Row of the dataset.
        num_cut_tokens: Tokens by which its prompt was shortened.
        text: The user's turn, without a template.
        sampling: Parameters without a seed of their own.
    """

    id: str
    category: str
    row: str
    prompt_ids: "array[int]"
    num_cut_tokens: int
    text: str
    sampling: SamplingParams
    num_draft_tokens: int | None = None


class LoadWorkload:
    """The requests of a load test, the same in every pass.

    Of a conversation with several turns, the first is asked.

    Args:
        num_requests: Requests of a pass; with a trace, at most its rows.
        trace: Where lengths come from. A prompt about as long as the trace's is chosen and cut to
            fit; the output is exactly as long as the trace's unless `max_new_tokens` is less.
        length_spread: Without a trace, an output may have from (1 - length_spread) times
            `max_new_tokens` to `max_new_tokens` tokens, at random.
        on_prepared: Called after each request.

    Raises:
        ValueError: If `max_new_tokens` leaves no room for a prompt.
    """

    def __init__(
        self,
        target: PromptedModel,
        classes: Sequence[RequestClass],
        num_requests: int,
        *,
        trace: Sequence[TraceRow] | None = None,
        length_spread: float = 0.0,
        seed: int = 0,
        on_prepared: Callable[[], None] | None = None,
    ) -> None:
        if trace is not None and length_spread:
            raise ValueError(
                f"length_spread={length_spread} has no effect on a trace, which sets the length of "
                "outputs; leave it out"
            )
        self.target = target
        self.classes = tuple(classes)
        self.seed = seed
        self._trace = None if trace is None else trace[:num_requests]
        self._length_spread = length_spread
        self._pools = {part.name: self._pool(part) for part in classes}
        self._rng = random.Random(seed)
        self.requests: list[PlannedRequest] = []
        self.num_short = 0
        count = num_requests if self._trace is None else len(self._trace)
        for number, part in enumerate(_draw_classes(classes, count, self._rng)):
            self.requests.append(self._plan(number, part))
            if on_prepared is not None:
                on_prepared()

    def __len__(self) -> int:
        return len(self.requests)

    def _pool(self, part: RequestClass) -> Pool:
        """Return the prompts of a class."""
        tokenizer = self.target.tokenizer
        if tokenizer is None:
            raise ValueError(
                f"{self.target.name} has no tokenizer, and prompts are text; load one with it"
            )
        return PromptPool(tokenizer, part.dataset, _max_prompt_tokens(self.target, part))

    def _plan(self, number: int, part: RequestClass) -> PlannedRequest:
        pool, sampling = self._pools[part.name], part.sampling
        if self._trace is None:
            row, prompt = pool.next()
            share = 1 - self._length_spread * self._rng.random()
            num_tokens = max(round(share * sampling.max_new_tokens), 1)
            sampling = replace(sampling, max_new_tokens=num_tokens)
        else:
            lengths = self._trace[number]
            row, prompt = pool.of_length(lengths.num_prompt_tokens, self._rng)
            wanted = min(lengths.num_prompt_tokens, pool.max_tokens)
            self.num_short += len(prompt.token_ids) + MIN_TEXT < wanted
            num_tokens = min(lengths.num_output_tokens, sampling.max_new_tokens)
            sampling = replace(sampling, max_new_tokens=num_tokens, ignore_eos=True)
        return PlannedRequest(
            id=str(number),
            category=part.name or row.category,
            row=row.id,
            prompt_ids=array("i", prompt.token_ids),
            num_cut_tokens=prompt.num_cut_tokens,
            text=prompt.text,
            sampling=sampling,
            num_draft_tokens=part.num_draft_tokens,
        )

    def request(self, number: int, repeat: int) -> Request:
        """Return the request to submit."""
        planned = self.requests[number]
        return Request(
            planned.prompt_ids.tolist(),
            self.sampling(number, repeat),
            id=planned.id,
            num_draft_tokens=planned.num_draft_tokens,
            category=planned.category,
        )

    def sampling(self, number: int, repeat: int) -> SamplingParams:
        """Return the parameters of a request.

        All sides of a repeat decode it with the same seed, which no other request shares.
        """
        sampling = self.requests[number].sampling
        base = self.seed if sampling.seed is None else sampling.seed
        return replace(sampling, seed=derive_seed(base, repeat, number))

    @property
    def has_greedy(self) -> bool:
        return any(part.sampling.is_greedy for part in self.classes)

    @property
    def has_sampled(self) -> bool:
        return any(not part.sampling.is_greedy for part in self.classes)

    @property
    def temperature(self) -> float | None:
        """Return the temperature of all requests, or None if they differ."""
        temperatures = {part.sampling.temperature for part in self.classes}
        return temperatures.pop() if len(temperatures) == 1 else None

    def describe(self) -> dict[str, Any]:
        """Return the actual lengths and shares, for the provenance of results."""
        requests = self.requests
        limits = [request.sampling.max_new_tokens for request in requests]
        workload: dict[str, Any] = {
            "num_requests": len(requests),
            "mean_prompt_tokens": _mean(
                [len(each.prompt_ids) for each in requests if each.prompt_ids]
            ),
            "mean_max_new_tokens": _mean(limits),
            "num_prompts_cut": sum(request.num_cut_tokens > 0 for request in requests),
        }
        if self._trace is not None:
            outputs = [row.num_output_tokens for row in self._trace]
            prompts = [row.num_prompt_tokens for row in self._trace]
            cut = [limit < wanted for limit, wanted in zip(limits, outputs, strict=True)]
            workload |= {
                "trace_mean_prompt_tokens": _mean(prompts),
                "trace_mean_output_tokens": _mean(outputs),
                "num_prompts_short": self.num_short,
                "num_outputs_cut": sum(cut),
            }
        if len(self.classes) > 1:
            by_class = Counter(request.category for request in requests)
            workload |= {f"num_requests_{name}": number for name, number in by_class.items()}
        return workload


def _max_prompt_tokens(target: PromptedModel, part: RequestClass) -> int:
    room = target.max_len - part.sampling.max_new_tokens
    if room < 1:
        raise ValueError(
            f"sampling.max_new_tokens={part.sampling.max_new_tokens} leaves no room for a prompt "
            f"in target.max_len={target.max_len}; lower the first or raise the second"
        )
    return room


def _draw_classes(
    classes: Sequence[RequestClass], num_requests: int, rng: random.Random
) -> list[RequestClass]:
    """Return the class of each request: the exact shares, rounded, in random order."""
    total = sum(part.share for part in classes)
    exact = [part.share / total * num_requests for part in classes]
    counts = [int(number) for number in exact]
    by_remainder = sorted(range(len(classes)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: num_requests - sum(counts)]:
        counts[i] += 1
    drawn = []
    for part, count in zip(classes, counts, strict=True):
        drawn += [part] * count
    if len(classes) > 1:
        rng.shuffle(drawn)
    return drawn


def _mean(values: Sequence[int]) -> float | None:
    return fmean(values) if values else None
