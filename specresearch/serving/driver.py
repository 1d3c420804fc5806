"""The half of the bridge that runs in the engine's thread."""

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from specresearch.engine import Engine, Step
from specresearch.request import Request
from specresearch.serving.updates import EngineUpdate, StepProgress, progress_of

logger = logging.getLogger(__name__)


class EngineFailedError(RuntimeError):
    """A step of the engine failed, and this request was part of it."""


class StepFeed:
    """A `StepObserver` that keeps the last step until the bridge takes it.

    Give it to the engine as an observer. It does nothing else, because what observers do counts for
    no request, and a server's work should.
    """

    def __init__(self) -> None:
        self._step: Step | None = None

    def __call__(self, step: Step) -> None:
        self._step = step

    def take(self) -> Step | None:
        """Return the last step once; None if there was none since."""
        step, self._step = self._step, None
        return step


class EngineDriver:
    """Steps an engine and carries out commands in between; all in one thread.

    Attributes:
        commands: To be carried out between steps, in order; None ends the thread.
    """

    def __init__(self, engine: Engine, feed: StepFeed) -> None:
        self.engine, self.feed = engine, feed
        self.commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._followed: dict[str, tuple[Request, float]] = {}
        self._watched: set[str] = set()

    def obey(self) -> bool:
        """Carry out the commands that have come, waiting for one if there is nothing else to do.

        Returns:
            False if the thread shall end.
        """
        while not (self.engine.has_work and self.commands.empty()):
            command = self.commands.get()
            if command is None:
                return False
            command()
        return True

    def submit(
        self, requests: Sequence[Request], arrival_time: float, *, watch: bool
    ) -> ValueError | None:
        """Queue requests, all or none; return why the engine refuses one."""
        try:
            for request in requests:
                self.engine.submit(request, arrival_time)
                self._followed[request.id] = request, arrival_time
                if watch:
                    self._watched.add(request.id)
        except ValueError as refusal:
            self.cancel([request.id for request in requests if request.id in self._followed])
            return refusal
        return None

    def cancel(self, ids: Sequence[str]) -> None:
        self.engine.cancel(*ids)
        for id in ids:
            self._drop(id)

    def step(self) -> tuple[EngineUpdate, list[tuple[str, StepProgress | EngineFailedError]]]:
        """Make a step; return what happened, and what it brought to each request."""
        news: list[tuple[str, StepProgress | EngineFailedError]] = []
        record = None
        try:
            record = self.engine.step()
        except Exception as error:
            logger.exception("a step of the engine failed; its requests fail, and it goes on")
            news += [(id, failure_of(error)) for id in self._recover()]
        step = self.feed.take()
        if step is not None:
            news += progress_of(step, self._followed, self._watched)
        outputs = tuple(self.engine.pop_finished())
        for output in outputs:
            if output.id in self._followed:
                news.append((output.id, StepProgress(output=output)))
                self._drop(output.id)
        return EngineUpdate.of(self.engine.scheduler, record, outputs), news

    def _drop(self, id: str) -> None:
        self._followed.pop(id, None)
        self._watched.discard(id)

    def _recover(self) -> list[str]:
        """Drop what a failed step may have touched, and return the ids of these requests.

        Requests that have never had a slot are queued again, so that one request cannot fail those
        which wait behind it.
        """
        scheduler = self.engine.scheduler
        waiting = [entry[-1] for entry in scheduler.waiting]
        kept = {row.id for row in waiting if not row.num_preemptions}
        self.engine.abort()
        self.engine.proposer.reset()
        self.engine.controller.reset()
        finished = {row.id for row, _ in scheduler.finished}
        failed = [id for id in self._followed if id not in kept | finished]
        for id in failed:
            self._drop(id)
        for id, (request, arrival_time) in self._followed.items():
            if id in kept:
                self.engine.submit(request, arrival_time)
        return failed


def failure_of(error: BaseException) -> EngineFailedError:
    """Return the error that requests get, which says nothing of the inside."""
    failure = EngineFailedError(f"{type(error).__name__} in a step of the engine")
    failure.__cause__ = error
    return failure
