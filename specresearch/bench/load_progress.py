"""The bar that shows how far a load run is, and how the load is being borne. It draws once a second at most."""

from types import TracebackType

from rich import progress as bars
from rich.console import Console

from specresearch.bench.load_loop import LoadLoop
from specresearch.bench.load_records import PassPlace

DRAWN_EVERY = 32  # prompts that are prepared


class LoadProgress:
    """Silent unless `enabled` and stderr is a terminal."""

    def __init__(self, num_passes: int, num_requests: int, *, enabled: bool = True) -> None:
        console = Console(stderr=True)
        self.num_passes, self.num_requests = num_passes, num_requests
        self._num_prepared = 0
        self._bar = bars.Progress(
            bars.TextColumn("{task.description:<26}"),
            bars.BarColumn(),
            bars.TextColumn("{task.completed:.0f}/{task.total} requests"),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[load]}"),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._bar.add_task("loading", total=num_passes * num_requests, load="")

    def __enter__(self) -> "LoadProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=what, refresh=True)

    def prepared(self) -> None:
        self._num_prepared += 1
        if self._num_prepared % DRAWN_EVERY == 0:
            self.say(f"prepared {self._num_prepared} of {self.num_requests}")

    def begin_pass(self, number: int, place: PassPlace) -> None:
        self._done = number * self.num_requests
        self._name = f"{place.side} (pass {number + 1} of {self.num_passes})"
        self._bar.update(self._task, description=self._name, completed=self._done, load="", refresh=True)

    def tick(self, loop: LoadLoop) -> None:
        if self._bar.disable:
            return
        load = f"{loop.num_in_flight - loop.num_waiting} running, {loop.num_waiting} waiting"
        self._bar.update(self._task, completed=self._done + loop.num_finished, load=load, refresh=True)
