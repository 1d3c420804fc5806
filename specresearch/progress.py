"""The progress of long work: a bar on a terminal, otherwise a line about every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.table import Table

FIRST_SECONDS = 3.0  # shorter work writes no line
LINE_SECONDS = 10.0  # between two lines
DRAW_SECONDS = 1.0  # between two drawings on a terminal

P = TypeVar("P", bound="Progress")
Figures = Callable[[], Mapping[str, str]]
_is_shown: ContextVar[bool] = ContextVar("shows_progress", default=True)


@contextmanager
def progress_shown(shown: bool) -> Iterator[None]:
    """Show or hide all progress within the block."""
    token = _is_shown.set(shown)
    try:
        yield
    finally:
        _is_shown.reset(token)


class Progress:
    """Shows on stderr how far long work is, what it measured so far, and how long it will take.

    It has no thread and draws only when called, so a measurement decides when that may happen.

    Args:
        total: Units of work.
        unit: Name of the units, in the plural.
        num_done: Units that were done before, by the run that this one resumes.
        figures: Returns what was measured so far, by name. Called only when something is shown.
        enabled: False shows nothing.

    Attributes:
        what: What is being done.
        is_shown: Whether anything is shown at all.
    """

    def __init__(
        self,
        total: float | int,
        unit: str,
        *,
        what: str = "",
        num_done: float | int = 0,
        figures: Figures = dict,
        enabled: bool = True,
    ) -> None:
        self.total = total
        self.unit = unit
        self.what = what
        self.num_done = num_done
        self._num_before = num_done
        self._figures = figures
        console = Console(stderr=True)
        self.is_shown = enabled and _is_shown.get()
        self._screen = Screen(console) if self.is_shown and console.is_terminal else None
        self._interval = DRAW_SECONDS if self._screen else LINE_SECONDS
        self._begin = time.monotonic()
        self._next = self._begin + (0.0 if self._screen else FIRST_SECONDS)

    def __enter__(self: P) -> P:
        if self._screen:
            self._screen.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._screen:
            self._screen.stop()

    def say(self, what: str) -> None:
        """Set what is being done; the remaining time is judged by what follows the first unit."""
        self.what = what
        if self.num_done == self._num_before:
            self._begin = time.monotonic()
        self.tick()

    def advance(self, num_units: float | int = 1) -> None:
        """Count more units as done."""
        self.update(self.num_done + num_units)

    def skip(self, num_units: float | int) -> None:
        """Count units that were done before; they say nothing about the speed."""
        self._num_before += num_units
        self.update(self.num_done + num_units)

    def extend(self, num_units: float | int) -> None:
        """Add units that turned out to be needed."""
        self.total += num_units

    def update(self, num_done: float | int) -> None:
        """Set how many units are done."""
        self.num_done = num_done
        self.tick()

    def tick(self) -> None:
        """Show the state, unless it was shown a moment ago."""
        if self.is_shown and time.monotonic() >= self._next:
            self.show()

    def show(self) -> None:
        """Show the state now."""
        if not self.is_shown:
            return
        if self._screen:
            self._screen.draw(self.line({}), self.num_done / (self.total or 1), self._figures())
        else:
            with suppress(OSError):  # a closed stderr
                print(self.line(self._figures()), file=sys.stderr, flush=True)
        self._next = time.monotonic() + self._interval

    def line(self, figures: Mapping[str, str]) -> str:
        """Return the state in one line."""
        begin = f"{self.what}: " if self.what else ""
        parts = [f"{begin}{self.num_done:,.0f} of {self.total:,.0f} {self.unit}"]
        parts += [f"{name} {value}" for name, value in figures.items()]
        seconds = self.seconds_left
        if seconds is not None:
            parts.append(f"about {duration(seconds)} to go")
        return ", ".join(parts)

    @property
    def seconds_left(self) -> float | None:
        """Return the remaining time at the average speed so far; None before the first unit."""
        num_new = self.num_done - self._num_before
        if num_new <= 0:
            return None
        return (time.monotonic() - self._begin) / num_new * (self.total - self.num_done)


class Screen(bars.Progress):
    """A bar on a terminal, under a table of figures."""

    def __init__(self, console: Console) -> None:
        self._table: Table | None = None
        super().__init__(
            bars.BarColumn(),
            bars.TextColumn("{task.description}"),
            console=console,
            transient=True,
            auto_refresh=False,
        )
        self._task = self.add_task("", total=1.0)

    def draw(self, line: str, share: float | int, figures: Mapping[str, str]) -> None:
        """Redraw bar and table."""
        self._table = None
        if figures:
            self._table = Table(*figures, box=None, pad_edge=False, header_style="bold")
            self._table.add_row(*figures.values())
        self.update(self._task, description=line, completed=share, refresh=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._table is not None:
            yield self._table
        yield from super().get_renderables()


def duration(seconds: float | int) -> str:
    """Return a time in words, such as `40 s`, `5 min` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
