"""The requests of a simulated load: recorded ones, over and over, with the lengths of a trace if there is one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from specresearch.batch import Request, RequestState
from specresearch.data.traces import TraceRow
from specresearch.simulation.acceptance import Replay
from specresearch.simulation.drafting import Drafting


@dataclass(frozen=True)
class Text:
    """What is known of a recorded output of `length` tokens. An output longer than the recorded one goes through it again.

    scores, expected: of a draft at each position; empty where they are not known.
    """

    replay: Replay
    length: int
    scores: Sequence[float] = ()
    expected: Sequence[float] = ()

    def scores_at(self, position: int, num: int) -> list[float]:
        """Of `num` drafts made after `position` tokens; the last that is known stands for those behind the end."""
        return self._part(self.scores, position, num)

    def expected_at(self, position: int, num: int) -> list[float]:
        return self._part(self.expected, position, num)

    def _part(self, values: Sequence[float], position: int, num: int) -> list[float]:
        begin = position % self.length
        found = list(values[begin : begin + num])
        return found + [values[-1]] * (num - len(found)) if found else []


@dataclass(frozen=True, kw_only=True)
class ReplayedRequest(Request):
    """A request of which it is known how it goes on: `num_tokens` of `text`, ended by `ends_for`. Its token ids mean nothing."""

    text: Text
    num_tokens: int
    ends_for: str = "length"


def text_of(row: RequestState) -> Text:
    assert isinstance(row.request, ReplayedRequest)
    return row.request.text


class Replays:
    """Numbered requests. The first round repeats what was drawn when they were recorded, every later one draws anew.

    All copies of a recorded request share its id, so that intervals count it once. trace: lengths; prompts and outputs are as
    long as its rows say, within max_len tokens.
    """

    def __init__(
        self, drafting: Drafting, max_len: int, trace: Sequence[TraceRow] | None = None
    ) -> None:
        self.drafting, self.max_len, self.trace = drafting, max_len, trace
        self._text = lru_cache(maxsize=4096)(self._make_text)

    def request(self, number: int, repeat: int = 0) -> ReplayedRequest:
        copy, recorded = divmod(number, len(self.drafting.requests))
        found = self.drafting.requests[recorded]
        num_prompt, num_tokens, ends_for = (
            len(found.prompt_ids),
            found.num_tokens,
            found.finish_reason,
        )
        sampling = replace(found.sampling, stop=(), logprobs=None)
        if self.trace is not None:
            row = self.trace[number % len(self.trace)]
            num_prompt = min(row.num_prompt_tokens, self.max_len - 1)
            num_tokens, ends_for = min(row.num_output_tokens, self.max_len - num_prompt), "length"
            sampling = replace(sampling, max_new_tokens=num_tokens)
        return ReplayedRequest(
            [0] * num_prompt,
            sampling,
            f"{found.repeat}:{found.id}",
            found.num_draft_tokens,
            found.category,
            text=self._text(recorded, copy * 1000 + repeat),
            num_tokens=num_tokens,
            ends_for=ends_for,
        )

    def _make_text(self, recorded: int, copy: int) -> Text:
        drafting = self.drafting
        found = drafting.requests[recorded]
        if not drafting.num_draft_tokens:
            return Text(drafting.replay(recorded, copy), found.num_tokens)
        scores, expected = drafting.told(recorded)
        return Text(drafting.replay(recorded, copy), found.num_tokens, scores, expected)
