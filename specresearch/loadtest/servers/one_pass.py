"""One pass of a load test of servers: send each request when it is due, and write its row."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from types import TracebackType

from specresearch.loadtest.loop import TICK, Feed, Stops
from specresearch.loadtest.progress import InFlight
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.servers.failures import FailureRow
from specresearch.loadtest.servers.folder import ServerFolder
from specresearch.loadtest.servers.sides import ServerSide
from specresearch.loadtest.servers.workload import ServerWorkload
from specresearch.metrics import Counts
from specresearch.openai_client import Counters, RequestRefusedError, StreamedAnswer
from specresearch.openai_client.failure import UNREACHABLE
from specresearch.rows import PassKey, RequestRow

MAX_UNREACHABLE = 8  # requests in a row that do not reach the server, before it counts as gone
MAX_JUMP = 1.0  # seconds by which the clock of day may part from the one that measures

logger = logging.getLogger(__name__)


class ServerLostError(ConnectionError):
    """A server that answered before does not any more."""


@dataclass
class ServerPass:
    """A pass as a context manager; it runs as a whole.

    Times are those of `time.perf_counter`, which no change of the date moves.

    Attributes:
        num_tokens: Tokens of finished requests.
        num_waiting: Requests without a first token, as counted about once a second.
        last_arrival: When the last request was due, in seconds since the pass began.
        stopped: Why the pass was stopped; None if it was not.
    """

    key: PassKey
    side: ServerSide
    workload: ServerWorkload
    feed: Feed
    stops: Stops
    folder: ServerFolder
    on_tick: Callable[[PassKey, InFlight], None]
    num_finished: int = 0
    num_tokens: int = 0
    num_waiting: int = 0
    last_arrival: float = 0.0
    stopped: str | None = None
    is_over: bool = field(default=False, init=False)

    def __enter__(self) -> "ServerPass":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind: the connections end with the pass."""

    @property
    def num_in_flight(self) -> int:
        return self.feed.num_submitted - self.num_finished - len(self._failures)

    def take_turn(self, seconds: float) -> None:
        """Run the whole pass.

        Raises:
            ServerLostError: If the server is gone.
        """
        asyncio.run(self._run())
        self.is_over = True

    async def _run(self) -> None:
        self._failures: list[FailureRow] = []
        self._answers: dict[int, StreamedAnswer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_reports = False
        self._num_unreachable = 0
        self._error: BaseException | None = None
        self._next_tick = TICK
        server = self.side.server
        async with server.address.session() as self._session:
            before = await server.counters(self._session)
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._changed = asyncio.Event()
            self._begin, date = time.perf_counter(), time.time()
            with self.folder.write_requests() as self._write:
                await self._send_all()
            wall = self._now
            jump = time.time() - date - wall
            counts = await self._counts(before)
        if abs(jump) > MAX_JUMP:
            logger.warning(
                "%s: the clock of this machine jumped by %+.0f s; times are unaffected unless the "
                "machine was suspended meanwhile",
                self.key.side,
                jump,
            )
        if self.stopped is not None:
            message = "%s: %s; continuing with the requests that finished"
            logger.warning(message, self.key.side, self.stopped)
        self.folder.end_pass(self._row(wall, counts, started), self._failures)

    async def _counts(self, before: Counters) -> Counts | None:
        """Return what the server has counted; None if its answers say it themselves."""
        after = await self.side.server.counters(self._session)
        return None if self._has_reports else after.since(before)

    def _row(self, wall: float, counts: Counts | None, started: str) -> PassRow:
        return PassRow(
            key=self.key,
            wall=wall,
            num_requests=len(self.feed.times),
            num_submitted=self.feed.num_submitted,
            num_finished=self.num_finished,
            last_arrival=self.last_arrival,
            num_waiting=self.num_waiting,
            stopped=self.stopped,
            counts=counts,
            num_failed=len(self._failures),
            session=self.folder.session,
            started=started,
        )

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._begin

    async def _send_all(self) -> None:
        try:
            while self.stopped is None and not (self.feed.is_empty and self.num_in_flight == 0):
                for number, due in self.feed.due(self._now, self.num_in_flight):
                    self._send(number, due)
                await self._wait()
                if self._error is not None:
                    raise self._error
                self._check_stops()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, number: int, due: float) -> None:
        self._answers[number] = StreamedAnswer()
        self.last_arrival = due
        task = asyncio.create_task(self._answer(number, due))
        self._tasks.add(task)
        task.add_done_callback(self._end_of)

    def _end_of(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._error = task.exception()
        self._changed.set()

    async def _wait(self) -> None:
        """Wait until a request ends, the next one is due, or a second is over."""
        seconds = TICK
        if self.feed.concurrency is None and not self.feed.is_empty:
            seconds = min(max(self.feed.next_time - self._now, 0.0), TICK)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()

    def _check_stops(self) -> None:
        now = self._now
        is_tick = now >= self._next_tick
        if is_tick or self.num_in_flight > self.stops.max_waiting:
            self.num_waiting = sum(not answer.times for answer in self._answers.values())
        num_answered = self.num_finished + len(self._failures)
        self.stopped = self.stops.reason(
            now, self.feed.num_submitted, num_answered, self.num_waiting
        )
        if is_tick:
            self._next_tick = now + TICK
            self.on_tick(self.key, self)

    async def _answer(self, number: int, due: float) -> None:
        """Send a request and write its row, or keep the row of its failure."""
        answer = self._answers[number]
        completion = self.workload.completion(number, self.key.repeat, self.side.num_draft_tokens)
        try:
            await self.side.server.ask(self._session, completion, answer)
            row = self._request_row(number, due, answer)
        except RequestRefusedError as error:
            self._fail(number, due, error)
        else:
            self._num_unreachable = 0
            self.num_finished += 1
            self.num_tokens += row.counts.num_generated_tokens
            self._has_reports |= row.counts.num_drafts > 0
            self._write(row)
        finally:
            del self._answers[number]

    def _fail(self, number: int, due: float, error: RequestRefusedError) -> None:
        planned = self.workload.requests[number]
        failure = FailureRow(
            key=self.key,
            id=planned.id,
            row=planned.row,
            category=planned.category,
            arrival=due,
            seconds=self._now - due,
            num_chunks=len(self._answers[number].times),
            kind=error.kind,
            message=error.message,
            status=error.status,
            retry_after=error.retry_after,
        )
        self._failures.append(failure)
        self._num_unreachable = self._num_unreachable + 1 if error.kind == UNREACHABLE else 0
        if self._num_unreachable >= MAX_UNREACHABLE:
            raise ServerLostError(
                f"{self.side.server.address.url} does not answer any more, after "
                f"{self.num_finished} requests of {self.key.side}, repeat {self.key.repeat} "
                f"({error.message})"
            )

    def _request_row(self, number: int, due: float, answer: StreamedAnswer) -> RequestRow:
        planned = self.workload.requests[number]
        times = answer.token_times or [time.perf_counter()]
        times = [moment - self._begin - due for moment in times]
        num_gaps = len(times) - 1
        waited = answer.queue_seconds
        is_greedy = planned.sampling.is_greedy
        return RequestRow(
            key=self.key,
            id=planned.id,
            row=planned.row,
            category=planned.category,
            num_prompt_tokens=answer.num_prompt_tokens or len(planned.prompt_ids),
            num_cut_tokens=planned.num_cut_tokens,
            arrival=due,
            # Without a word from the server, waiting cannot be told from prefill.
            queue_time=times[0] if waited is None else waited,
            ttft=times[0],
            tpot=(times[-1] - times[0]) / num_gaps if num_gaps else 0.0,
            e2el=times[-1],
            itl=tuple(round(after - before, 7) for before, after in pairwise(times)),
            prefill_time=0.0,
            finish_reason=answer.finish_reason or "unknown",
            counts=answer.counts,
            text=answer.text if is_greedy else "",
        )
