"""What a pretended device was asked to do, and when the host waited for it."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent


@dataclass(frozen=True)
class Wait:
    """One time that the host waited for the device.

    Attributes:
        cause: The operation that waited.
        place: File and line of the innermost caller outside of torch.
    """

    cause: str
    place: str

    def __str__(self) -> str:
        return f"{self.cause} at {self.place}"


@dataclass(frozen=True)
class CapturedOperation:
    """An operation of a graph, with the memory that it reads and writes.

    Attributes:
        results: What it returned when it was captured.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: tuple[Tensor, ...]

    def replay(self) -> None:
        """Run it again on the same memory."""
        anew = tree_leaves(self.function(*self.args, **self.kwargs))
        for result, values in zip(self.results, anew, strict=True):
            if values is not result:
                result.copy_(values)


@dataclass
class Activity:
    """What was queued on the device and what the host waited for, since the last `clear`.

    Attributes:
        launches: Operations with a kernel of their own, by name. Views launch nothing. An operation
            that torch computes with several kernels counts once.
        uploads: Copies from the host to the device that did not wait.
        num_queued: Everything that was ever queued; it only grows.
        num_done: How much of it is known to be done, since the host has waited for it.
        captured: The operations of a graph that is being captured; None outside of captures.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)
    uploads: int = 0
    num_queued: int = 0
    num_done: int = 0
    captured: list[CapturedOperation] | None = None

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    def clear(self) -> None:
        """Start counting anew."""
        self.launches.clear()
        self.waits.clear()
        self.uploads = 0

    def launch(self, name: str) -> None:
        if self.captured is not None:
            return  # a capture runs nothing
        self.launches[name] += 1
        self.num_queued += 1

    def upload(self) -> None:
        self._refuse_in_capture("a copy from the host")
        self.uploads += 1
        self.num_queued += 1

    def wait(self, cause: str) -> None:
        """Count a wait of the host until everything queued so far is done."""
        self._refuse_in_capture(cause)
        self.waits.append(Wait(cause, _caller()))
        self.num_done = self.num_queued

    def _refuse_in_capture(self, cause: str) -> None:
        if self.captured is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {cause}")


def _caller() -> str:
    """Return file and line of the innermost frame that is neither torch's nor the mock's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if _HERE not in path.parents and "torch" not in path.parts:
            return f"{_shortened(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def _shortened(path: Path) -> str:
    return str(path.relative_to(_PACKAGE.parent)) if _PACKAGE in path.parents else path.name
