"""A progress bar with a token rate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

Advance = Callable[[int, int], None]


@contextmanager
def progress(
    title: str, total: int, unit: str, done: int = 0, *, shown: bool = True
) -> Iterator[Advance]:
    """Yield a function that advances the bar by (units, tokens); hidden without a terminal."""
    console = Console(stderr=True)
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
    task = bar.add_task(title, total=total, completed=done, rate="")
    num_tokens = 0

    def advance(units: int, tokens: int) -> None:
        nonlocal num_tokens
        num_tokens += tokens
        seconds = bar.tasks[task].elapsed or 0.0
        rate = f"{num_tokens / seconds:,.0f} tokens/s" if seconds else ""
        bar.update(task, advance=units, rate=rate)

    with bar:
        yield advance
