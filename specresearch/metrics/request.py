"""The record of one finished request."""

import math
from dataclasses import dataclass
from itertools import pairwise

from specresearch.metrics.counts import Counts
from specresearch.request import RequestState


@dataclass(frozen=True)
class RequestRecord:
    """One finished request. Times are in seconds, as defined in `metrics.DEFINITIONS`.

    Attributes:
        arrival_time: On the engine's clock.
    """

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
    num_reused_tokens: int = 0

    @staticmethod
    def of(state: RequestState, counts: Counts) -> "RequestRecord":
        """Return the record of a finished request; times are NaN if it has no tokens."""
        assert state.finish_reason is not None
        times = state.token_times or [math.nan]
        num_gaps = len(times) - 1
        return RequestRecord(
            id=state.id,
            num_prompt_tokens=state.num_prompt_tokens,
            counts=counts,
            finish_reason=state.finish_reason,
            ttft=times[0] - state.arrival_time,
            tpot=(times[-1] - times[0]) / num_gaps if num_gaps else 0.0,
            e2el=times[-1] - state.arrival_time,
            itl=tuple(after - before for before, after in pairwise(times)),
            prefill_time=state.prefill_time,
            num_preemptions=state.num_preemptions,
            queue_time=state.queue_time,
            arrival_time=state.arrival_time,
            num_reused_tokens=state.total_reused,
        )
