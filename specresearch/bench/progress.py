"""The progress bar of a run. It is drawn only between requests, outside of the measurement."""

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from rich import progress as bars
from rich.console import Console

from specresearch.bench.rows import GroupRow
from specresearch.bench.side import RunSide
from specresearch.rows import BASELINE, METHOD

B = TypeVar("B", bound="Bar")


class Bar:
    """A progress bar with a description and a note; silent if disabled or without a terminal."""

    def __init__(self, total: int, unit: str, *, width: int, enabled: bool = True) -> None:
        console = Console(stderr=True)
        self._bar = bars.Progress(
            bars.TextColumn(f"{{task.description:<{width}}}"),
            bars.BarColumn(),
            bars.TextColumn(f"{{task.completed:.0f}}/{{task.total}} {unit}"),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._bar.add_task("loading", total=total, note="")

    def __enter__(self: B) -> B:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, what: str) -> None:
        """Set the description."""
        self._bar.update(self._task, description=what, refresh=True)


class Progress(Bar):
    """The bar of a run, with the speedup so far."""

    def __init__(self, num_prompts: int, *, enabled: bool = True) -> None:
        super().__init__(num_prompts, "prompts", width=12, enabled=enabled)

    def advance(self, num_prompts: float, groups: Sequence[GroupRow]) -> None:
        """Advance by `num_prompts`.

        Args:
            groups: Everything measured so far.
        """
        if self._bar.disable:
            return
        plain, fast = (
            RunSide.of(side, [], groups).tokens_per_second for side in (BASELINE, METHOD)
        )
        note = f"{fast / plain:.2f}x so far" if plain and fast else ""
        self._bar.update(self._task, advance=num_prompts, note=note, refresh=True)
