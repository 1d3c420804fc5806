"""The bar that shows how far a load run is, and how the load is being borne. It draws once a second at most."""

from specresearch.bench.load_loop import LoadLoop
from specresearch.bench.load_records import PassPlace
from specresearch.bench.progress import Bar

DRAWN_EVERY = 32  # prompts that are prepared


class LoadProgress(Bar):
    """Of all passes of a load run."""

    def __init__(self, num_passes: int, num_requests: int, *, enabled: bool = True) -> None:
        super().__init__(num_passes * num_requests, "requests", width=26, enabled=enabled)
        self.num_passes, self.num_requests = num_passes, num_requests
        self._num_prepared = 0

    def prepared(self) -> None:
        self._num_prepared += 1
        if self._num_prepared % DRAWN_EVERY == 0:
            self.say(f"prepared {self._num_prepared} of {self.num_requests}")

    def begin_pass(self, number: int, place: PassPlace) -> None:
        self._done = number * self.num_requests
        self._name = f"{place.side} (pass {number + 1} of {self.num_passes})"
        self._bar.update(self._task, description=self._name, completed=self._done, note="", refresh=True)

    def tick(self, loop: LoadLoop) -> None:
        if self._bar.disable:
            return
        load = f"{loop.num_in_flight - loop.num_waiting} running, {loop.num_waiting} waiting"
        self._bar.update(self._task, completed=self._done + loop.num_finished, note=load, refresh=True)
