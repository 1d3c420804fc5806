"""The output of a finished request."""

from collections.abc import Callable
from dataclasses import dataclass

from specresearch.metrics import Counts, RequestRecord
from specresearch.request import RequestState, TokenLogprob


class RequestFailedError(ValueError):
    """A request could not be decoded to its end; the message says why."""


@dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    Attributes:
        text: The decoded output, cut before a stop string; "" without a tokenizer.
        finish_reason: "eos", "stop" or "length", or "error" for a request that failed alone.
        error: Why the request failed.
    """

    id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...]
    record: RequestRecord
    error: str | None = None

    @staticmethod
    def of(
        row: RequestState, counts: Counts, decode: Callable[[list[int]], str]
    ) -> "RequestOutput":
        """Return the output of a request that has finished."""
        assert row.finish_reason is not None
        return RequestOutput(
            id=row.id,
            token_ids=tuple(row.output_ids),
            text=decode(row.output_ids)[: row.stop_at],
            finish_reason=row.finish_reason,
            logprobs=tuple(row.logprobs),
            record=RequestRecord.of(row, counts),
            error=row.error,
        )

    def checked(self) -> "RequestOutput":
        """Return this output, or raise RequestFailedError if the request failed."""
        if self.error is not None:
            raise RequestFailedError(self.error)
        return self
