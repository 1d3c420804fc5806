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
from specresearch.loadtest.rows import LoadRow, PassPlace, PassRow, StepLog
from specresearch.loadtest.workload import Workload

STEPS_AT_ONCE = 4096  # kept in memory before they are written

logger = logging.getLogger(__name__)


class LoadPass:
    """A context that leaves no request behind. The pass counts once `is_over`; after an error nothing of it does.

    on_tick: called about once a second. observer: of the engine's steps. The engine's clock runs in turns only.
    """

    def __init__(
        self,
        place: PassPlace,
        engine: Engine,
        workload: Workload,
        feed: Feed,
        stops: Stops,
        folder: LoadFolder,
        on_tick: Callable[[PassPlace, LoadLoop], None],
        observer: PassObserver,
    ) -> None:
        self.place, self.engine, self.workload = place, engine, workload
        self.folder, self.on_tick, self.observer = folder, on_tick, observer
        self._memory: list[tuple[float, int]] = []
        self._log = StepLog(place, self.engine.clock.now())
        self.loop = LoadLoop(
            engine,
            feed,
            lambda number: workload.request(number, place.repeat),
            self._log,
            stops,
            self._keep,
            self._tick,
        )

    def __enter__(self) -> "LoadPass":
        self.observer.begin(self.place.side, self.place.repeat)
        self._files = ExitStack()
        self._rows = self._files.enter_context(self.folder.write_pass(self.place))
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
        self._rows.add_request(LoadRow.of(self.place, planned, self._log.begin, output))

    def _tick(self, loop: LoadLoop) -> None:
        self.on_tick(self.place, loop)
        self._look()
        if len(self._log) >= STEPS_AT_ONCE:
            self._rows.add_steps(self._log.take())

    def _end(self) -> None:
        self._look()
        self._rows.add_steps(self._log.take())
        self._files.close()
        loop, controller = self.loop, self.engine.controller
        if loop.stopped is not None:
            logger.warning("%s: %s; going on with what it has", self.place.side, loop.stopped)
        row = PassRow(
            self.place,
            loop.wall,
            len(self.workload),
            loop.feed.num_submitted,
            loop.num_finished,
            loop.last_arrival,
            loop.num_waiting,
            loop.stopped,
            tuple(controller.trace()),
            tuple(self._memory),
            self.observer.end(),
        )
        self.folder.end_pass(row)
