"""The progress of a load test, whose passes may take turns."""

from typing import Protocol, runtime_checkable

from specresearch.progress import Progress
from specresearch.rows import PassKey


@runtime_checkable
class InFlight(Protocol):
    """How far the requests of a pass are, which the loop of each kind of pass says."""

    num_finished: int
    num_waiting: int

    @property
    def num_in_flight(self) -> int: ...


class LoadProgress(Progress):
    """Counts the requests of all passes.

    Attributes:
        num_passes: Passes of all sides and repeats.
        num_requests: Requests of each pass.
    """

    def __init__(self, num_passes: int, num_requests: int, *, enabled: bool = True) -> None:
        super().__init__(
            num_passes * num_requests, "requests", figures=self._in_flight, enabled=enabled
        )
        self.num_passes = num_passes
        self.num_requests = num_requests
        self._num_prepared = 0
        self._num_finished: dict[PassKey, int] = {}
        self._num_passes_done = 0
        self._loop: InFlight | None = None

    def prepared(self) -> None:
        """Count another prompt as prepared."""
        self._num_prepared += 1
        self.say(f"prepared {self._num_prepared} of {self.num_requests} prompts")

    def pass_done(self, key: PassKey, *, was_kept: bool = False) -> None:
        """Count a pass as finished; `was_kept` if an earlier run had finished it."""
        self._num_passes_done += 1
        self._loop = None
        if was_kept:
            self._num_finished[key] = self.num_requests
            self.skip(self.num_requests)
        else:
            self._set_finished(key, self.num_requests)

    def tick_pass(self, key: PassKey, loop: InFlight) -> None:
        """Show how far a pass is."""
        self.what = f"{key.side} ({self._num_passes_done} of {self.num_passes} passes done)"
        self._loop = loop
        self._set_finished(key, loop.num_finished)

    def _set_finished(self, key: PassKey, num_requests: int) -> None:
        self._num_finished[key] = num_requests
        self.update(sum(self._num_finished.values()))

    def _in_flight(self) -> dict[str, str]:
        if self._loop is None:
            return {}
        num_waiting = self._loop.num_waiting
        return {
            "running": f"{self._loop.num_in_flight - num_waiting}",
            "waiting": f"{num_waiting}",
        }
