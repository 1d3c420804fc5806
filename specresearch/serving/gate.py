"""What every request passes before it is read: its id, limits, and the API key."""

import hmac
import logging
import re
import time
import uuid
from contextvars import ContextVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specresearch.serving.errors import ApiError, internal_error
from specresearch.serving.settings import ServeSettings

REQUEST_ID = b"x-request-id"
OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})  # for probes, which have no key
PAGE_PATHS = re.compile(r"/|/page/.*")  # asks for the key itself
_ID = re.compile(rb"[\w.:-]{1,128}")  # a client's id that is kept

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
logger = logging.getLogger(__name__)


class Gate:
    """Middleware that names every request, refuses those beyond the limits, and logs the answer.

    Bodies are counted as they come, whatever the client says of their length.

    Args:
        app: What requests pass on to.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        id = _id_of(headers.get(REQUEST_ID))
        token = request_id.set(id)
        log = _Log(scope, id)
        body = _Body(receive, self._settings.max_body_bytes)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REQUEST_ID, id.encode())]
                log.status = message["status"]
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, body.receive, send_named)
        except ApiError as error:
            await error.response()(scope, receive, send_named)
        except Exception:
            logger.exception("a request failed")
            if not log.status:
                await internal_error().response()(scope, receive, send_named)
        finally:
            log.write()
            request_id.reset(token)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._settings.max_header_bytes:
            most = self._settings.max_header_bytes
            raise ApiError(431, f"the header lines are longer than {most:,} bytes")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._settings.max_body_bytes:
            raise ApiError(413, too_large(self._settings.max_body_bytes))
        key = self._settings.api_key
        path = scope["path"]
        if key is None or path in OPEN_PATHS or PAGE_PATHS.fullmatch(path):
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        matches = hmac.compare_digest(given.strip(), key.encode())
        if scheme.lower() != b"bearer" or not matches:
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def too_large(limit: int) -> str:
    """Return what is wrong with a body beyond the limit."""
    return f"the body is larger than {limit:,} bytes"


class _Body:
    """Counts the bytes of a body.

    Args:
        limit: In bytes; the read that goes beyond it raises HTTPException.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._size = receive, limit, 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            # FastAPI makes a 400 of any other error while it reads a body.
            raise HTTPException(413, too_large(self._limit))
        return message


class _Log:
    """The line that a request leaves in the log."""

    def __init__(self, scope: Scope, id: str) -> None:
        self.status = 0
        self._scope, self._id, self._start = scope, id, time.monotonic()

    def write(self) -> None:
        fields = {
            "request_id": self._id,
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "seconds": round(time.monotonic() - self._start, 6),
        }
        level = logging.DEBUG if self._scope["path"] in OPEN_PATHS else logging.INFO
        logger.log(level, "request", extra={"fields": fields})


def _id_of(given: bytes | None) -> str:
    """Return the client's id of a request, or a new one."""
    if given is not None and _ID.fullmatch(given):
        return given.decode()
    return f"req-{uuid.uuid4().hex}"
