"""The bridge between an event loop and the engine, which runs in a thread of its own.

Only that thread touches the engine. The loop sends it commands; after every step the thread sends
back one update, from which the loop serves all streams. So a step costs one switch between threads,
however many requests it advances.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from specresearch.engine import Engine
from specresearch.request import Request
from specresearch.serving.driver import EngineDriver, EngineFailedError, StepFeed, failure_of
from specresearch.serving.updates import EngineUpdate, StepProgress

logger = logging.getLogger(__name__)


class RequestStream:
    """What comes of requests that were submitted together. Use it in the event loop only.

    Args:
        cancel: Drops requests by their ids.
        interval: Tokens to wait for before progress is told of. The first tokens, and the end of a
            request, are told of at once.
    """

    def __init__(
        self, ids: Sequence[str], cancel: Callable[[Sequence[str]], None], interval: int = 1
    ) -> None:
        self.ids = tuple(ids)
        self._cancel = cancel
        self._interval = interval
        self._num_untold = interval  # so that the first tokens do not wait
        self._received: list[tuple[int, StepProgress]] = []
        self._failure: BaseException | None = None
        self._news = asyncio.Event()

    async def read(self) -> list[tuple[int, StepProgress]]:
        """Return all progress since the last call, once there is some.

        Each entry has the number of the request, in order of submission. The last progress of a
        request has its output.

        Raises:
            EngineFailedError: If a step with one of the requests failed.
        """
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure
        received, self._received = self._received, []
        self._num_untold = 0
        return received

    def put(self, id: str, item: StepProgress | BaseException) -> None:
        """Add what has come of a request, for `read`."""
        is_last = True
        if isinstance(item, BaseException):
            self._failure = item
        else:
            self._received.append((self.ids.index(id), item))
            self._num_untold += len(item.token_ids)
            is_last = item.output is not None
        if is_last or self._num_untold >= self._interval:
            self._news.set()

    def cancel(self) -> None:
        """Drop those of the requests that have not ended."""
        self._cancel(self.ids)


class EngineBridge:
    """Submits requests to an engine in its thread, and returns what comes of them.

    Args:
        feed: An observer of the engine.
        on_update: Called in the event loop after every step.

    Attributes:
        failure: Why the thread has ended early; None while all is well.
    """

    def __init__(
        self,
        engine: Engine,
        feed: StepFeed,
        on_update: Callable[[EngineUpdate], None] | None = None,
    ) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.on_update = on_update
        self._streams: dict[str, RequestStream] = {}
        self._submissions: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver = EngineDriver(engine, feed)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def num_live(self) -> int:
        """Return how many requests wait or run."""
        return len(self._streams)

    def start(self) -> None:
        """Start the thread. The running event loop is the one to serve."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def idle(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Drop all requests and end the thread."""
        self._end_streams(EngineFailedError("the server has stopped"))
        self._driver.commands.put(self.engine.abort)
        self._driver.commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def submit(
        self, requests: Sequence[Request], *, watch: bool = False, interval: int = 1
    ) -> RequestStream:
        """Queue requests, all or none. Each needs an id that is not in use.

        Args:
            watch: Report the drafts of every step.
            interval: As of `RequestStream`.

        Raises:
            ValueError: If the engine can never serve one of the requests.
            EngineFailedError: If the engine's thread has ended.
        """
        assert self._loop is not None
        if self.failure is not None:
            raise EngineFailedError("the engine has stopped")
        stream = RequestStream([request.id for request in requests], self.cancel, interval)
        submission: asyncio.Future[None] = self._loop.create_future()
        arrival_time = self.engine.clock.now()
        self._streams |= dict.fromkeys(stream.ids, stream)
        self._submissions.add(submission)
        self._idle.clear()

        def submit() -> None:
            error = self._driver.submit(requests, arrival_time, watch=watch)
            self._call(_settle, submission, error)

        self._driver.commands.put(submit)
        try:
            await submission
        except BaseException:
            stream.cancel()
            raise
        finally:
            self._submissions.discard(submission)
        return stream

    def cancel(self, ids: Sequence[str]) -> None:
        """Drop requests that have not ended; their slots are free at the latest after this step."""
        live = [id for id in ids if self._forget(id) is not None]
        if live:
            self._driver.commands.put(lambda: self._driver.cancel(live))

    def _forget(self, id: str) -> RequestStream | None:
        stream = self._streams.pop(id, None)
        if not self._streams:
            self._idle.set()
        return stream

    def _deliver(self, update: EngineUpdate, news: Sequence[tuple[str, Any]]) -> None:
        """Hand on what a step brought; called in the event loop."""
        for id, item in news:
            is_last = isinstance(item, BaseException) or item.output is not None
            stream = self._forget(id) if is_last else self._streams.get(id)
            if stream is not None:
                stream.put(id, item)
        if self.on_update is not None:
            self.on_update(update)

    def _end_streams(self, reason: BaseException) -> None:
        for submission in self._submissions:
            _settle(submission, reason)
        for id in list(self._streams):
            stream = self._forget(id)
            if stream is not None:
                stream.put(id, reason)

    def _run(self) -> None:
        """Drive the engine; called in the thread."""
        try:
            while self._driver.obey():
                if self.engine.has_work:
                    self._call(self._deliver, *self._driver.step())
        except BaseException as error:
            logger.exception("the engine's thread has ended")
            self.failure = error
            self._call(self._end_streams, failure_of(error))

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop, unless that has been closed."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(submission: "asyncio.Future[None]", error: BaseException | None) -> None:
    """Resolve a submission, unless whoever waited for it has gone."""
    if submission.done():
        return
    if error is None:
        submission.set_result(None)
    else:
        submission.set_exception(error)
