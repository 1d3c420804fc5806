"""What is asked under load: the prompts of one dataset, or of several classes of requests in given shares, ready to be sent."""

import random
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from transformers import PreTrainedTokenizerBase

from specresearch.data import Prompt, PromptDataset, Row, render
from specresearch.data.traces import TraceRow
from specresearch.models import CausalLM
from specresearch.request import Request
from specresearch.sampling import SamplingParams, derive_seed

NEAREST = 8  # prompts of about the right length, of which one is taken
LEAST_TEXT = 32  # tokens: the least that is left of a prompt, beside its template


@dataclass(frozen=True)
class RequestClass:
    """Requests of one kind. share: weight among the classes. num_draft_tokens: as in `Request`."""

    dataset: PromptDataset
    sampling: SamplingParams
    name: str = ""
    share: float = 1.0
    num_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < float("inf"):
            raise ValueError(
                f"classes.{self.name}.share={self.share} must be above 0; leave the class out instead"
            )


@dataclass(frozen=True)
class PlannedRequest:
    """row: of the dataset. num_cut_tokens: by how much its prompt was shortened. sampling: without a seed."""

    id: str
    category: str
    row: str
    prompt_ids: "array[int]"
    num_cut_tokens: int
    sampling: SamplingParams
    num_draft_tokens: int | None = None


class Workload:
    """The requests of a run, the same in every pass. Of a row with several turns the first is asked.

    num_requests: with a trace, at most its rows. trace: where lengths come from; a prompt about as long as the trace's is chosen
    and its end cut to fit, and the answer is exactly as long as the trace's unless `max_new_tokens` is less.
    length_spread: without a trace, an answer may have `max_new_tokens` tokens, or down to (1 - length_spread) times as many, at
    random.
    Raises ValueError when `max_new_tokens` leaves no room for a prompt.
    """

    def __init__(
        self,
        target: CausalLM,
        classes: Sequence[RequestClass],
        num_requests: int,
        *,
        trace: Sequence[TraceRow] | None = None,
        length_spread: float = 0.0,
        seed: int = 0,
        on_prepared: Callable[[], None] | None = None,
    ) -> None:
        if target.tokenizer is None:
            raise ValueError(
                f"{target.name} has no tokenizer, and prompts are text; load one with it"
            )
        if trace is not None and length_spread:
            raise ValueError(
                f"length_spread={length_spread} has no effect on a trace, which says how long answers are; leave it out"
            )
        self.classes = tuple(classes)
        self.seed = seed
        self._trace, self._length_spread = trace, length_spread
        most = num_requests if trace is None else min(num_requests, len(trace))
        self._pools = {
            part.name: _Pool(target.tokenizer, part, _room(target, part)) for part in classes
        }
        self._rng = random.Random(seed)
        self.requests: list[PlannedRequest] = []
        self.num_short = 0
        for number, part in enumerate(_deal(classes, most, self._rng)):
            row = trace[number] if trace is not None else None
            self.requests.append(self._plan(number, part, row))
            if on_prepared is not None:
                on_prepared()

    def __len__(self) -> int:
        return len(self.requests)

    def _plan(self, number: int, part: RequestClass, lengths: TraceRow | None) -> PlannedRequest:
        pool, sampling = self._pools[part.name], part.sampling
        if lengths is None:
            row, prompt = pool.next()
            share = 1 - self._length_spread * self._rng.random()
            sampling = replace(
                sampling, max_new_tokens=max(round(share * sampling.max_new_tokens), 1)
            )
        else:
            row, prompt = pool.of_length(lengths.num_prompt_tokens, self._rng)
            self.num_short += len(prompt.token_ids) + LEAST_TEXT < min(
                lengths.num_prompt_tokens, pool.room
            )
            wanted = min(lengths.num_output_tokens, sampling.max_new_tokens)
            sampling = replace(sampling, max_new_tokens=wanted, ignore_eos=True)
        category = part.name or row.category
        ids = array("i", prompt.token_ids)
        return PlannedRequest(
            str(number),
            category,
            row.id,
            ids,
            prompt.num_cut_tokens,
            sampling,
            part.num_draft_tokens,
        )

    def request(self, number: int, repeat: int) -> Request:
        """What is submitted. Every side of a repeat decodes it with the same seed; no two requests share one."""
        planned = self.requests[number]
        base = self.seed if planned.sampling.seed is None else planned.sampling.seed
        sampling = replace(planned.sampling, seed=derive_seed(base, repeat, number))
        return Request(
            planned.prompt_ids.tolist(),
            sampling,
            planned.id,
            planned.num_draft_tokens,
            planned.category,
        )

    @property
    def has_greedy(self) -> bool:
        return any(part.sampling.is_greedy for part in self.classes)

    @property
    def has_sampled(self) -> bool:
        return any(not part.sampling.is_greedy for part in self.classes)

    @property
    def temperature(self) -> float | None:
        """Of all requests; None where they differ."""
        found = {part.sampling.temperature for part in self.classes}
        return found.pop() if len(found) == 1 else None

    def describe(self) -> dict[str, Any]:
        """Lengths and shares as they came out, for the provenance of results."""
        told: dict[str, Any] = {
            "num_requests": len(self.requests),
            "mean_prompt_tokens": _mean([len(request.prompt_ids) for request in self.requests]),
            "mean_max_new_tokens": _mean(
                [request.sampling.max_new_tokens for request in self.requests]
            ),
            "num_prompts_cut": sum(request.num_cut_tokens > 0 for request in self.requests),
        }
        if self._trace is not None:
            rows = self._trace[: len(self.requests)]
            told |= {
                "trace_mean_prompt_tokens": _mean([row.num_prompt_tokens for row in rows]),
                "trace_mean_output_tokens": _mean([row.num_output_tokens for row in rows]),
                "num_prompts_short": self.num_short,
                "num_outputs_cut": sum(
                    request.sampling.max_new_tokens < row.num_output_tokens
                    for request, row in zip(self.requests, rows, strict=True)
                ),
            }
        if len(self.classes) > 1:
            by_class = Counter(request.category for request in self.requests)
            told |= {f"num_requests_{name}": num for name, num in by_class.items()}
        return told


class _Pool:
    """The prompts of a class: in the dataset's order, over and over, or by length."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, part: RequestClass, room: int) -> None:
        self.tokenizer, self.dataset, self.room = tokenizer, part.dataset, room
        self._prompts: dict[str, Prompt] = {}
        self._cycle = cycle(part.dataset.rows)
        self._by_length: list[tuple[int, Row]] = []
        self._least = 0

    def next(self) -> tuple[Row, Prompt]:
        row = next(self._cycle)
        return row, self._whole(row)

    def of_length(self, num_tokens: int, rng: random.Random) -> tuple[Row, Prompt]:
        """One of the prompts that are nearest in length, cut to `num_tokens` if it is longer."""
        if not self._by_length:
            self._by_length = sorted(
                ((len(self._whole(row).token_ids), row) for row in self.dataset), key=_length
            )
            self._least = len(render(self.tokenizer, self.dataset.template, [""])) + LEAST_TEXT
        wanted = min(num_tokens, self.room)
        begin = min(
            bisect_left(self._by_length, wanted, key=_length),
            max(len(self._by_length) - NEAREST, 0),
        )
        length, row = rng.choice(self._by_length[begin : begin + NEAREST])
        allowed = max(wanted, self._least)
        return row, self._whole(row) if length <= allowed else self._cut(row, allowed)

    def _whole(self, row: Row) -> Prompt:
        if row.id not in self._prompts:
            self._prompts[row.id] = self._cut(row, self.room)
        return self._prompts[row.id]

    def _cut(self, row: Row, max_tokens: int) -> Prompt:
        return self.dataset.prompt(self.tokenizer, row, max_tokens=max_tokens)


def _length(entry: tuple[int, Row]) -> int:
    return entry[0]


def _room(target: CausalLM, part: RequestClass) -> int:
    room = target.max_len - part.sampling.max_new_tokens
    if room < 1:
        raise ValueError(
            f"sampling.max_new_tokens={part.sampling.max_new_tokens} leaves no room for a prompt in "
            f"target.max_len={target.max_len}; lower the first or raise the second"
        )
    return room


def _deal(
    classes: Sequence[RequestClass], num_requests: int, rng: random.Random
) -> list[RequestClass]:
    """Classes in exactly their shares, as nearly as whole requests allow, in random order."""
    total = sum(part.share for part in classes)
    exact = [part.share / total * num_requests for part in classes]
    counts = [int(number) for number in exact]
    by_rest = sorted(range(len(classes)), key=lambda i: counts[i] - exact[i])
    for i in by_rest[: num_requests - sum(counts)]:
        counts[i] += 1
    dealt = [part for part, count in zip(classes, counts, strict=True) for _ in range(count)]
    if len(classes) > 1:
        rng.shuffle(dealt)
    return dealt


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
