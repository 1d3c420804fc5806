"""A controller's estimates, averaged over stretches of steps so that a long run leaves little."""

from specresearch.controllers.base import Controller, check


class ControllerTrace:
    """Averages estimates over every `every` steps."""

    def __init__(self, every: int = 100) -> None:
        check("trace_every", every, every >= 1, "at least 1 step")
        self.every = every
        self.clear()

    def add(self, **estimates: float | int) -> None:
        """Add a step. Every step has the same estimates."""
        self._num_steps += 1
        for name, value in estimates.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        if self._num_steps % self.every == 0:
            self._rows.append(self._average(self.every))
            self._sums = {}

    def rows(self) -> list[dict[str, float]]:
        """Return a row per stretch, the unfinished one included.

        `step` is the number of a stretch's last step, counted from 1.
        """
        num_unfinished = self._num_steps % self.every
        unfinished = [self._average(num_unfinished)] if num_unfinished else []
        return self._rows + unfinished

    def clear(self) -> None:
        self._num_steps = 0
        self._sums: dict[str, float] = {}
        self._rows: list[dict[str, float]] = []

    def _average(self, num_steps: int) -> dict[str, float]:
        row = {"step": float(self._num_steps)}
        for name, total in self._sums.items():
            row[name] = total / num_steps
        return row


class TracedController(Controller):
    """A controller that keeps a trace of its estimates."""

    def __init__(self, trace_every: int) -> None:
        self._trace = ControllerTrace(trace_every)

    def reset(self) -> None:
        self._trace.clear()

    def trace(self) -> list[dict[str, float]]:
        return self._trace.rows()
