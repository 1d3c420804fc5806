"""What the engine does when memory runs out in the middle of a step."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specresearch.engine.scheduler import Scheduler
from specresearch.models.load_errors import first_line
from specresearch.models.memory import is_out_of_memory

logger = logging.getLogger(__name__)

REMEDY = "lower the batch size, target.max_len or target.prefill_chunk, or use a smaller drafter"


class MemoryRelief:
    """Lets one request fewer run after memory ran out, as long as nothing was delivered.

    All requests are preempted, since the failed step may have left any of them half done, and all
    but the one that arrived last start again at once.

    Args:
        release: Frees what the engine holds for slots.
    """

    def __init__(self, scheduler: Scheduler, release: Callable[[Sequence[int]], None]) -> None:
        self._scheduler = scheduler
        self._release = release
        self._has_retreated = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Guard the part of a step before anything is delivered.

        If memory runs out, the block ends early and the next step runs fewer requests.

        Raises:
            MemoryError: If only one request was running, or the last step failed as well.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            num_running, reason = len(self._scheduler.running), first_line(error)
            if num_running < 2 or self._has_retreated:
                running = "1 request" if num_running == 1 else f"{num_running} requests"
                raise MemoryError(
                    f"out of memory with {running} running ({reason}); {REMEDY}"
                ) from error
            logger.warning(
                "out of memory with %d requests running (%s): all are prefilled again, and at most "
                "%d run together until they have ended",
                num_running,
                reason,
                num_running - 1,
            )
            self._has_retreated = True
            self._release(self._scheduler.retreat())

    def succeeded(self) -> None:
        """Allow another retreat, since a step had enough memory."""
        self._has_retreated = False

    def reset(self) -> None:
        """Let as many requests run as before, once none is left."""
        self._has_retreated = False
        self._scheduler.advance()
