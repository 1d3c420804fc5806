"""The progress bar of a load test and of its current load. It draws about once a second."""

from specresearch.bench.progress import Bar
from specresearch.loadtest.loop import LoadLoop
from specresearch.rows import PassKey

DRAW_EVERY = 32  # prompts that are prepared


class LoadProgress(Bar):
    """The progress of all passes, which may take turns."""

    def __init__(self, num_passes: int, num_requests: int, *, enabled: bool = True) -> None:
        super().__init__(num_passes * num_requests, "requests", width=26, enabled=enabled)
        self.num_passes = num_passes
        self.num_requests = num_requests
        self._num_prepared = 0
        self._num_finished: dict[PassKey, int] = {}
        self._num_done = 0

    def prepared(self) -> None:
        """Count another prompt as prepared."""
        self._num_prepared += 1
        if self._num_prepared % DRAW_EVERY == 0:
            self.say(f"prepared {self._num_prepared} of {self.num_requests}")

    def pass_done(self, key: PassKey) -> None:
        """Count a pass as finished."""
        self._num_finished[key] = self.num_requests
        self._num_done += 1
        self._bar.update(self._task, completed=sum(self._num_finished.values()), refresh=True)

    def tick(self, key: PassKey, loop: LoadLoop) -> None:
        """Show how far a pass is."""
        self._num_finished[key] = loop.num_finished
        if self._bar.disable:
            return
        self._bar.update(
            self._task,
            description=f"{key.side} ({self._num_done} of {self.num_passes} passes done)",
            completed=sum(self._num_finished.values()),
            note=f"{loop.num_in_flight - loop.num_waiting} running, {loop.num_waiting} waiting",
            refresh=True,
        )
