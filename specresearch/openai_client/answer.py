"""A streamed answer: its text, how many tokens it has, and when they arrived."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from specresearch.metrics import Counts
from specresearch.openai_client.drafting import counts_of_answer
from specresearch.openai_client.failure import BROKEN, RequestRefusedError, one_line

TEXTS = ("content", "reasoning_content", "reasoning")  # of a chat's delta


@dataclass
class StreamedAnswer:
    """One answer as its chunks arrive. Times are those of the caller's clock.

    Attributes:
        times: When each chunk with text arrived.
        sizes: Characters of each of these chunks.
        totals: Tokens up to each chunk, where the server counts them; else None.
        is_done: Whether the stream came to its end.
        report: The server's own account of drafting, in this answer.
        queue_seconds: How long the request waited by the server's own account.
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    totals: list[int | None] = field(default_factory=list)
    finish_reason: str | None = None
    is_done: bool = False
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None
    report: Mapping[str, Any] | None = None
    queue_seconds: float | None = None

    def add(self, event: Any, now: float) -> None:
        """Read an event that arrived.

        Raises:
            RequestRefusedError: If it is an error, or no chunk of an answer.
        """
        if not isinstance(event, dict):
            raise RequestRefusedError(BROKEN, one_line(f"an event that is no object: {event}"))
        try:
            self._add(event, now)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RequestRefusedError(
                BROKEN, one_line(f"an event that is no chunk of an answer: {event}")
            ) from error

    def _add(self, event: Mapping[str, Any], now: float) -> None:
        if event.get("error"):
            error = event["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise RequestRefusedError(BROKEN, one_line(str(message)))
        usage = event.get("usage") or {}
        if usage.get("completion_tokens") is not None:
            self.num_tokens = _count(usage["completion_tokens"])
            if usage.get("prompt_tokens") is not None:
                self.num_prompt_tokens = _count(usage["prompt_tokens"])
        metrics = event.get("metrics") or {}
        self._read_report(metrics.get("speculative_decoding"))
        if metrics.get("queue_time_ms") is not None:
            self.queue_seconds = float(metrics["queue_time_ms"]) / 1e3
        total = self.num_tokens if usage.get("completion_tokens") is not None else None
        for choice in event.get("choices") or ():
            self._add_choice(choice, now, total)

    def _add_choice(self, choice: Any, now: float, total: int | None) -> None:
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            self.is_done = True
        self._read_report(choice.get("speculative_decoding"))
        delta = choice.get("delta") or {}
        text = choice.get("text") or "".join(delta.get(name) or "" for name in TEXTS)
        if text:
            self.text += text
            self.times.append(now)
            self.sizes.append(len(text))
            self.totals.append(total)

    def _read_report(self, report: Any) -> None:
        if report and isinstance(report, dict):
            self.report = report

    @property
    def counts(self) -> Counts:
        """Return the counts of drafting; only tokens if the server's account is not understood."""
        num_tokens = self.num_tokens or 0
        if self.report is not None:
            with suppress(KeyError, OverflowError, TypeError, ValueError):
                return counts_of_answer(self.report, num_tokens)
        return Counts(num_generated_tokens=num_tokens)

    @property
    def token_times(self) -> list[float]:
        """Return when each token arrived.

        A chunk may hold several tokens. Where the server does not count them chunk by chunk, the
        tokens of the answer are shared out by the length of the chunks' texts.
        """
        num_tokens = self.num_tokens or 0
        if not self.times or not num_tokens:
            return []
        shares = np.cumsum(self.sizes) / sum(self.sizes)
        # The first and the last chunk hold a token each, since they say when the answer came.
        ends = (
            np.clip(np.floor(shares * num_tokens), 1, max(num_tokens - 1, 1)).astype(int).tolist()
        )
        if all(total is not None for total in self.totals):
            totals = np.maximum.accumulate([total or 0 for total in self.totals])
            ends = np.minimum(totals, num_tokens).tolist()
        ends[-1] = num_tokens
        times: list[float] = []
        for (begin, end), now in zip(pairwise([0, *ends]), self.times, strict=True):
            times += [now] * (end - begin)
        return times


def _count(value: Any) -> int:
    """Return a number of tokens; raise ValueError if it is none."""
    number = int(value)
    if number < 0:
        raise ValueError(f"{value} tokens")
    return number
