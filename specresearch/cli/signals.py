"""SIGTERM and SIGHUP end a command as Ctrl-C does: with the results so far."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
INTERRUPTED = 128 + signal.SIGINT


@dataclass
class Stop:
    """The signal that stopped the command.

    Attributes:
        signum: The first signal received, Ctrl-C excluded; None if there was none.
    """

    signum: int | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for a command ended by this signal."""
        return INTERRUPTED if self.signum is None else 128 + self.signum


@contextmanager
def signals_interrupt() -> Iterator[Stop]:
    """Raise KeyboardInterrupt on SIGTERM or SIGHUP; the yielded object then names the signal.

    Only the first signal counts, because a later one would interrupt the writing of results.
    Ignored signals stay ignored, as under nohup. Python handles signals in the main thread only, so
    nothing changes in others.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        for handled in previous:
            signal.signal(handled, signal.SIG_IGN)
        stop.signum = signum
        raise KeyboardInterrupt

    previous = {}
    for signum in STOPPING:
        handler = signal.getsignal(signum)
        if handler is not signal.SIG_IGN:
            previous[signum] = handler
            signal.signal(signum, interrupt)
    try:
        yield stop
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
