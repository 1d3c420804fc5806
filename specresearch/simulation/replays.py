"""The requests of a simulated load: recorded ones, over and over.

With a trace, they take its lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from specresearch.data.traces import TraceRow
from specresearch.request import Request, RequestState
from specresearch.sampling import SamplingParams
from specresearch.simulation.acceptance import AcceptanceReplay, Drafted
from specresearch.simulation.drafting import Drafting
from specresearch.simulation.models import END, TOKEN
from specresearch.simulation.positions import Estimates


@dataclass(frozen=True)
class ReplayedOutput:
    """What is known of a recorded output. A longer output goes through it again.

    Attributes:
        length: Its tokens.
    """

    replay: AcceptanceReplay
    length: int
    estimates: Estimates = field(default_factory=Estimates)

    def draft(self, position: int, budget: int) -> Drafted:
        """Return what is drafted after `position` tokens, and how much of it is accepted."""
        return self.replay.step(position % self.length, budget)

    def at(self, values: Sequence[float], position: int, num: int) -> list[float]:
        """Return one of the estimates for `num` drafts after `position` tokens.

        Behind the end of the output the last known value is repeated.
        """
        if not values:
            return []
        begin = position % self.length
        known = list(values[begin : begin + num])
        return known + [values[-1]] * (num - len(known))


@dataclass(frozen=True, kw_only=True)
class ReplayedRequest(Request):
    """A request of which it is known how it goes on. Its token ids mean nothing.

    Attributes:
        num_tokens: Tokens of its output, unless `max_new_tokens` or the target's limit is reached
            before.
        finish_reason: Why the output ends there.
        recorded_id: Id of the recorded request.
    """

    output: ReplayedOutput
    num_tokens: int
    finish_reason: str = "length"
    recorded_id: str = ""


def request_of(row: RequestState) -> ReplayedRequest:
    """Return the request of a row."""
    assert isinstance(row.request, ReplayedRequest)
    return row.request


def output_of(row: RequestState) -> ReplayedOutput:
    """Return what is known of the output of a row."""
    return request_of(row).output


@lru_cache
def replayed_sampling(max_new_tokens: int) -> SamplingParams:
    """Return parameters under which an output ends with the token `END`, or at the limit."""
    return SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=(END,), ignore_eos=True)


class Replays:
    """The requests of a simulated load, by number.

    The first round repeats what was drawn when they were recorded; every later round draws anew.
    All copies of a recorded request share its `recorded_id`, so that intervals count it once.

    Args:
        max_len: The most tokens of a request.
        trace: Lengths of prompts and outputs in place of the recorded ones.
    """

    def __init__(
        self, drafting: Drafting, max_len: int, trace: Sequence[TraceRow] | None = None
    ) -> None:
        self.drafting = drafting
        self.max_len = max_len
        self.trace = trace
        self._output = lru_cache(maxsize=4096)(self._make_output)

    def request(self, number: int, repeat: int = 0) -> ReplayedRequest:
        """Return the request of a number."""
        copy, index = divmod(number, len(self.drafting.requests))
        recorded = self.drafting.requests[index]
        num_prompt_tokens = len(recorded.prompt_ids)
        num_tokens = recorded.num_tokens
        max_new_tokens = recorded.sampling.max_new_tokens
        finish_reason = recorded.finish_reason
        if self.trace is not None:
            row = self.trace[number % len(self.trace)]
            num_prompt_tokens = min(row.num_prompt_tokens, self.max_len - 1)
            num_tokens = min(row.num_output_tokens, self.max_len - num_prompt_tokens)
            max_new_tokens = num_tokens
            finish_reason = "length"
        return ReplayedRequest(
            [TOKEN] * num_prompt_tokens,
            replayed_sampling(max_new_tokens),
            id=str(number),
            num_draft_tokens=recorded.num_draft_tokens,
            category=recorded.category,
            output=self._output(index, copy * 1000 + repeat),
            num_tokens=num_tokens,
            finish_reason=finish_reason,
            recorded_id=f"{recorded.repeat}:{recorded.id}",
        )

    def _make_output(self, index: int, copy: int) -> ReplayedOutput:
        length = self.drafting.requests[index].num_tokens
        replay = self.drafting.replay(index, copy)
        return ReplayedOutput(replay, length, self.drafting.estimates(index))
