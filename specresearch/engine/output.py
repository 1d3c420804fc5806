"""What a request has come to."""

from dataclasses import dataclass

from specresearch.metrics import RequestRecord
from specresearch.request import TokenLogprob


class RequestFailedError(ValueError):
    """A request could not be decoded to its end; the message says why."""


@dataclass(frozen=True)
class RequestOutput:
    """A finished request. text: the output decoded, cut before a stop string ("" without a tokenizer).

    finish_reason: eos, stop, length, or error for a request that failed alone; error: why it failed.
    """

    id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...]
    record: RequestRecord
    error: str | None = None

    def checked(self) -> "RequestOutput":
        """Return this output. Raises RequestFailedError for a request that failed."""
        if self.error is not None:
            raise RequestFailedError(self.error)
        return self
