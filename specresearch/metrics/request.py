"""The record of one finished request."""

import math
from dataclasses import dataclass

from specresearch.metrics.counts import Counts
from specresearch.request import RequestState


@dataclass(frozen=True)
class RequestRecord:
    """One finished request. Times in seconds; see `DEFINITIONS`. arrival_time: on the engine's clock."""

    id: str
    num_prompt_tokens: int
    counts: Counts
    finish_reason: str
    ttft: float
    tpot: float
    e2el: float
    itl: tuple[float, ...]
    prefill_time: float
    num_preemptions: int = 0
    queue_time: float = 0.0
    arrival_time: float = 0.0

    @staticmethod
    def of(state: RequestState, counts: Counts) -> "RequestRecord":
        assert state.finish_reason is not None
        moments = state.token_times or [
            math.nan
        ]  # none of a request that failed before its first token
        first, last, num = moments[0], moments[-1], len(moments)
        return RequestRecord(
            state.id,
            state.num_prompt_tokens,
            counts,
            state.finish_reason,
            first - state.arrival_time,
            (last - first) / (num - 1) if num > 1 else 0.0,
            last - state.arrival_time,
            tuple(b - a for a, b in zip(state.token_times, state.token_times[1:], strict=False)),
            state.prefill_time,
            state.num_preemptions,
            state.queue_time,
            state.arrival_time,
        )
