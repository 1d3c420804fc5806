"""One step at a time, all of it or nothing, and requests that come from other threads meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from specresearch.engine.scheduler import NoSlotError


class StepGuard:
    """settle: queues and drops requests as other threads have asked; never called while a step is made.

    After an exception in the middle of a step (or in `settle`) there are no more steps until `forgive`.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._lock = Lock()
        self._failure: BaseException | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step. Raises RuntimeError in the middle of another, and after one that failed."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this engine is in the middle of a step; let one thread step it, and the others submit, cancel or abort"
            )
        try:
            self.refuse_after_failure()
            with self._watched():
                self._settle()
                yield
                self._settle()
        finally:
            self._lock.release()

    def settle_if_idle(self) -> None:
        """Settle now, unless a step is being made, which settles at its end."""
        if self._lock.acquire(blocking=False):
            try:
                with self._watched():
                    self._settle()
            finally:
                self._lock.release()

    def refuse_after_failure(self) -> None:
        """Raises RuntimeError if a step has failed and not been forgiven."""
        if self._failure is not None:
            raise RuntimeError(
                f"the last step of this engine failed ({type(self._failure).__name__}: {self._failure}) "
                "and may have left its requests half done; abort() drops them, then it can go on"
            ) from self._failure

    def forgive(self) -> None:
        """Nothing is left that a failed step may have touched."""
        self._failure = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except NoSlotError:
            raise
        except BaseException as error:
            self._failure = error
            raise
