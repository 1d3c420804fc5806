"""One pass of a load run: the whole workload through one engine, a turn at a time, and what is written down of it."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from specresearch.bench.pass_observer import PassObserver
from specresearch.engine import Engine, RequestOutput
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.loop import Feed, LoadLoop, Stops
from specresearch.loadtest.memory import resident_bytes
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.workload import Workload
from specresearch.rows import PassKey, RequestRow, StepLog

STEPS_AT_ONCE = 4096  # kept in memory before they are written

logger = logging.getLogger(__name__)


class LoadPass:
    """A context that leaves no request behind. The pass counts once `is_over`; after an error nothing of it does.

    on_tick: called about once a second. observer: of the engine's steps. The engine's clock runs in turns only.
    """

    def __init__(
        self,
        key: PassKey,
        engine: Engine,
        workload: Workload,
        feed: Feed,
        stops: Stops,
        folder: LoadFolder,
        on_tick: Callable[[PassKey, LoadLoop], None],
        observer: PassObserver,
    ) -> None:
        self.key, self.engine, self.workload = key, engine, workload
        self.folder, self.on_tick, self.observer = folder, on_tick, observer
        self._memory: list[tuple[float, int]] = []
        self._log = StepLog(key, self.engine.clock.now())
        self.loop = LoadLoop(
            engine,
            feed,
            lambda number: workload.request(number, key.repeat),
            self._log,
            stops,
            self._keep,
            self._tick,
        )

    def __enter__(self) -> "LoadPass":
        self.observer.begin(self.key.side, self.key.repeat)
        self._files = ExitStack()
        self._rows = self._files.enter_context(self.folder.write_pass(self.key))
        self._look()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.abort()
        self.loop.resume()
        self._files.close()

    @property
    def is_over(self) -> bool:
        return self.loop.is_over

    def take_turn(self, seconds: float) -> None:
        """Go on for so long, on the clock of the pass, or to its end. Raises whatever the engine raises."""
        self.loop.run(seconds)
        if self.is_over:
            self._end()

    def _look(self) -> None:
        self._memory.append((round(self.engine.clock.now() - self._log.begin, 3), resident_bytes()))

    def _keep(self, output: RequestOutput) -> None:
        planned = self.workload.requests[int(output.id)]
        row = RequestRow.of(
            self.key,
            output,
            row=planned.row,
            begin=self._log.begin,
            category=planned.category,
            num_cut_tokens=planned.num_cut_tokens,
        )
        self._rows.add_request(row)

    def _tick(self, loop: LoadLoop) -> None:
        self.on_tick(self.key, loop)
        self._look()
        if len(self._log) >= STEPS_AT_ONCE:
            self._rows.add_steps(self._log.pop())

    def _end(self) -> None:
        self._look()
        self._rows.add_steps(self._log.pop())
        self._files.close()
        loop, controller = self.loop, self.engine.controller
        if loop.stopped is not None:
            logger.warning("%s: %s; going on with what it has", self.key.side, loop.stopped)
        row = PassRow(
            key=self.key,
            wall=loop.wall,
            num_requests=len(self.workload),
            num_submitted=loop.feed.num_submitted,
            num_finished=loop.num_finished,
            last_arrival=loop.last_arrival,
            num_waiting=loop.num_waiting,
            stopped=loop.stopped,
            trace=tuple(controller.trace()),
            memory=tuple(self._memory),
            scores=self.observer.end(),
        )
        self.folder.end_pass(row)
