"""Why a request got no answer: a row of the results, and no end of the measurement."""

import ssl
from dataclasses import dataclass

import httpx

MAX_MESSAGE = 200  # characters of what a server says
RATE_LIMITED, REFUSED, DISCONNECTED = "rate limited", "refused", "disconnected"
TIMED_OUT, UNREACHABLE, BROKEN = "timed out", "unreachable", "broken answer"


@dataclass
class RequestRefusedError(Exception):
    """A request that failed.

    Attributes:
        kind: One of the kinds above.
        message: What the server or the network said, in one line.
        status: The HTTP status, if there was an answer.
        retry_after: What the server said about when to try again.
    """

    kind: str
    message: str
    status: int | None = None
    retry_after: str | None = None

    def __str__(self) -> str:
        status = f" (HTTP {self.status})" if self.status is not None else ""
        return f"{self.kind}{status}: {self.message}"


def of_status(response: httpx.Response, text: str) -> RequestRefusedError:
    """Return the failure that an HTTP status says."""
    is_limit = response.status_code == httpx.codes.TOO_MANY_REQUESTS
    return RequestRefusedError(
        RATE_LIMITED if is_limit else REFUSED,
        one_line(text) or response.reason_phrase,
        response.status_code,
        response.headers.get("retry-after"),
    )


def of_network(error: httpx.RequestError) -> RequestRefusedError:
    """Return the failure that an error of the network means, or of what came through it."""
    kind = DISCONNECTED
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        kind = UNREACHABLE
    elif isinstance(error, httpx.TimeoutException):
        kind = TIMED_OUT
    elif not isinstance(error, httpx.TransportError):
        kind = BROKEN
    return RequestRefusedError(kind, one_line(str(error)) or type(error).__name__)


def is_of_certificate(error: BaseException | None) -> bool:
    """Return whether a certificate that does not verify caused an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def one_line(text: str) -> str:
    """Return a text in one line of at most MAX_MESSAGE characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 3]}..."
