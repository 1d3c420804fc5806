"""When a run that goes on writes its figures so far, so that a killed run keeps them."""

import time
from collections.abc import Callable

LEAST_SECONDS = 5.0  # between two writes
MOST_COST = 20  # a write must take less than one part in this of the time between two


class Flush:
    """Calls `write` now and then, at moments that the run chooses outside of timed sections."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._next = 0.0

    def __call__(self) -> None:
        """Write, unless the last write is too recent for what it took."""
        begin = time.monotonic()
        if begin < self._next:
            return
        self._write()
        end = time.monotonic()
        self._next = end + max(LEAST_SECONDS, MOST_COST * (end - begin))
