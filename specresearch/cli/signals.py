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
    """signum: of the signal that came first; None as long as none did. Ctrl-C is not counted."""

    signum: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell reports of a command that a signal ended."""
        return INTERRUPTED if self.signum is None else 128 + self.signum


@contextmanager
def signals_interrupt() -> Iterator[Stop]:
    """Raise KeyboardInterrupt in the main thread when SIGTERM or SIGHUP comes, which the yielded object then names.

    Only the first one does: what follows would interrupt the writing of results. A signal that is ignored, as under nohup, stays
    ignored. In other threads, where Python takes no signals, nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        stop.signum = signum
        raise KeyboardInterrupt

    taken = {
        each: signal.getsignal(each)
        for each in STOPPING
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in taken:
        signal.signal(each, interrupt)
    try:
        yield stop
    finally:
        for each, before in taken.items():
            signal.signal(each, before)
