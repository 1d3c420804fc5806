"""Write the figures of an unfinished run now and then, so that a killed run keeps them."""

import time
from collections.abc import Callable

LEAST_SECONDS = 5.0  # between two writes
MOST_COST = 20  # writing takes at most one part in this of the time


class Flush:
    """Calls `write` now and then, when the run is outside of timed sections."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._next = 0.0

    def __call__(self) -> None:
        """Write, unless the last write is too recent for the time it took."""
        begin = time.monotonic()
        if begin < self._next:
            return
        self._write()
        end = time.monotonic()
        self._next = end + max(LEAST_SECONDS, MOST_COST * (end - begin))
