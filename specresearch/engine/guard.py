"""Allow one step at a time, and none after a failed one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from specresearch.engine.scheduler import NoSlotError


class StepGuard:
    """Serialize steps, and refuse to go on after an exception in one until `forgive`.

    Args:
        settle: Queues and drops requests as other threads have asked. It is called before and after
            each step, never during one; an exception in it counts as a failed step.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._lock = Lock()
        self._failure: BaseException | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Guard the step made in this block.

        Raises:
            RuntimeError: Another step is in progress, or an earlier one failed.
        """
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this engine is in the middle of a step; let one thread step it, and the others "
                "submit, cancel or abort"
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
        """Settle now. A step in progress settles at its end instead."""
        if self._lock.acquire(blocking=False):
            try:
                with self._watched():
                    self._settle()
            finally:
                self._lock.release()

    def refuse_after_failure(self) -> None:
        """Raise RuntimeError if a step has failed and not been forgiven."""
        if self._failure is not None:
            raise RuntimeError(
                "the last step of this engine failed "
                f"({type(self._failure).__name__}: {self._failure}) and may have left its requests "
                "half done; abort() drops them, then it can go on"
            ) from self._failure

    def forgive(self) -> None:
        """Allow steps again, once every request that a failed step may have touched is gone."""
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
