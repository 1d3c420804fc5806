"""Answers that stop when their client goes away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


async def unless_disconnected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Return the result of `work`, or cancel it and return None as soon as the client has gone.

    Args:
        receive: Of a request whose body has been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An answer by server-sent events.

    Args:
        events: Encoded events.
        close: Called once the answer has ended, or the client has gone.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__()
        self._events, self._close = events, close
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # proxies must not hold events back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(self._send(send), receive)
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
