"""The bar that shows how far a load run is, and how the load is being borne. It draws once a second at most."""

from specresearch.bench.progress import Bar
from specresearch.loadtest.loop import LoadLoop
from specresearch.rows import PassKey

DRAWN_EVERY = 32  # prompts that are prepared


class LoadProgress(Bar):
    """Of all passes of a load run, which may take turns."""

    def __init__(self, num_passes: int, num_requests: int, *, enabled: bool = True) -> None:
        super().__init__(num_passes * num_requests, "requests", width=26, enabled=enabled)
        self.num_passes, self.num_requests = num_passes, num_requests
        self._num_prepared = 0
        self._finished: dict[PassKey, int] = {}
        self._num_done = 0

    def prepared(self) -> None:
        self._num_prepared += 1
        if self._num_prepared % DRAWN_EVERY == 0:
            self.say(f"prepared {self._num_prepared} of {self.num_requests}")

    def pass_done(self, key: PassKey) -> None:
        self._finished[key] = self.num_requests
        self._num_done += 1
        self._bar.update(self._task, completed=sum(self._finished.values()), refresh=True)

    def tick(self, key: PassKey, loop: LoadLoop) -> None:
        self._finished[key] = loop.num_finished
        if self._bar.disable:
            return
        name = f"{key.side} ({self._num_done} of {self.num_passes} passes done)"
        load = f"{loop.num_in_flight - loop.num_waiting} running, {loop.num_waiting} waiting"
        done = sum(self._finished.values())
        self._bar.update(self._task, description=name, completed=done, note=load, refresh=True)
