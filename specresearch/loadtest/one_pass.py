"""One pass of a load test: the whole workload through one engine, in turns, and its rows."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from specresearch.bench.pass_observer import PassObserver
from specresearch.engine import Engine, RequestOutput
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.loop import Feed, LoadLoop, Stops
from specresearch.loadtest.workload import LoadWorkload
from specresearch.models.memory import resident_bytes
from specresearch.rows import PassKey, RequestRow, StepLog

STEPS_AT_ONCE = 4096  # kept in memory before they are written

logger = logging.getLogger(__name__)


@dataclass
class LoadPass:
    """A pass as a context manager that leaves no request behind.

    The engine's clock runs during turns only. The pass counts once it `is_over`; after an error its
    rows do not count.

    Attributes:
        on_tick: Called about once a second.
        observer: Observes the engine's steps.
    """

    key: PassKey
    engine: Engine
    workload: LoadWorkload
    feed: Feed
    stops: Stops
    folder: LoadFolder
    on_tick: Callable[[PassKey, LoadLoop], None]
    observer: PassObserver

    def __post_init__(self) -> None:
        self._memory: list[tuple[float, int]] = []
        self._log = StepLog(self.key, self.engine.clock.now())
        self.loop = LoadLoop(
            engine=self.engine,
            feed=self.feed,
            request=lambda number: self.workload.request(number, self.key.repeat),
            log=self._log,
            stops=self.stops,
            on_output=self._write_request,
            on_tick=self._tick,
        )

    def __enter__(self) -> "LoadPass":
        self.observer.begin(self.key.side, self.key.repeat)
        self._files = ExitStack()
        self._rows = self._files.enter_context(self.folder.write_pass(self.key))
        self._sample_memory()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.abort()
        self.loop.resume()
        self._files.close()

    @property
    def num_tokens(self) -> int:
        return self.loop.num_tokens

    @property
    def is_over(self) -> bool:
        return self.loop.is_over

    def take_turn(self, seconds: float) -> None:
        """Run for so many seconds of the pass's clock, or to the end of the pass."""
        self.loop.run(seconds)
        if self.is_over:
            self._end()

    def _sample_memory(self) -> None:
        seconds = self.engine.clock.now() - self._log.begin
        self._memory.append((round(seconds, 3), resident_bytes()))

    def _write_request(self, output: RequestOutput) -> None:
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
        self._sample_memory()
        if len(self._log) >= STEPS_AT_ONCE:
            self._rows.add_steps(self._log.pop())

    def _end(self) -> None:
        self._sample_memory()
        self._rows.add_steps(self._log.pop())
        self._files.close()
        if self.loop.stopped is not None:
            message = "%s: %s; continuing with the requests that finished"
            logger.warning(message, self.key.side, self.loop.stopped)
        scores = self.observer.end()
        self.folder.end_pass(self.loop.row(memory=tuple(self._memory), scores=scores))
