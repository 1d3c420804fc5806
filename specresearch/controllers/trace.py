"""A controller's figures, averaged over stretches of steps, so that a long run leaves a short trace."""


class Trace:
    """every: steps averaged into one row."""

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"controller.trace_every={every} must be at least 1 step")
        self.every = every
        self.clear()

    def add(self, **figures: float | int) -> None:
        """The same figures at every step."""
        self._num_steps += 1
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        if self._num_steps % self.every == 0:
            self._rows.append(self._average(self.every))
            self._sums = {}

    def rows(self) -> list[dict[str, float]]:
        """step: the last step of the stretch, counted from 1 among those that had figures. An unfinished one counts."""
        rest = self._num_steps % self.every
        return [*self._rows, self._average(rest)] if rest else list(self._rows)

    def _average(self, num_steps: int) -> dict[str, float]:
        return {"step": float(self._num_steps)} | {
            name: total / num_steps for name, total in self._sums.items()
        }

    def clear(self) -> None:
        self._num_steps = 0
        self._sums: dict[str, float] = {}
        self._rows: list[dict[str, float]] = []
