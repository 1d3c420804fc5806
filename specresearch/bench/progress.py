"""The bar that shows how far a run is. It draws only between requests, so that drawing costs the measurement nothing."""

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from rich import progress as bars
from rich.console import Console

from specresearch.bench.rows import GroupRow
from specresearch.rows import BASELINE, METHOD

B = TypeVar("B", bound="Bar")


class Bar:
    """A bar of `total` units with a description and a note; silent unless `enabled` and stderr is a terminal."""

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
        self._bar.update(self._task, description=what, refresh=True)


class Progress(Bar):
    """Of a run, with its speedup so far."""

    def __init__(self, num_prompts: int, *, enabled: bool = True) -> None:
        super().__init__(num_prompts, "prompts", width=12, enabled=enabled)

    def advance(self, num_prompts: float, groups: Sequence[GroupRow]) -> None:
        """`num_prompts` more are done; groups: everything measured so far."""
        if self._bar.disable:
            return
        speed = [_tokens_per_second(side, groups) for side in (BASELINE, METHOD)]
        running = f"{speed[1] / speed[0]:.2f}x so far" if all(speed) else ""
        self._bar.update(self._task, advance=num_prompts, note=running, refresh=True)


def _tokens_per_second(side: str, groups: Sequence[GroupRow]) -> float:
    own = [row for row in groups if row.key.side == side]
    seconds = sum(row.wall for row in own)
    return sum(row.num_generated_tokens for row in own) / seconds if seconds else 0.0
