"""When a controller measures something other than its usual choice."""

_MAX_BACKOFF = 4  # times `every` between two probes, at most, while they find nothing new
_MAX_REPEATS = 4  # of a probe with surprising times


class Probes:
    """Schedules a probe every `every` steps, and up to four times as rarely while nothing changes.

    A probe with surprising times is repeated.

    Attributes:
        number: The number of the current or next probe, from 1.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.number = 1
        self._next = self._interval = every
        self._has_changed = False

    def is_due(self, step: int, num_surprises: int) -> bool:
        """Return whether a step is to probe.

        Args:
            num_surprises: How many successive steps up to this one had surprising times.
        """
        num_since = step - self._next
        return num_since == 0 or 0 < num_since == num_surprises <= _MAX_REPEATS

    def is_first(self, step: int) -> bool:
        """Return whether a step probes and does not repeat a probe."""
        return step == self._next

    def note_change(self, has_changed: bool) -> None:
        """Bring the next probe forward if something has changed."""
        self._has_changed |= has_changed

    def observe(self, step: int, num_surprises: int) -> None:
        """Plan the next probe after a step, which is included in `num_surprises`."""
        if step < self._next or self.is_due(step + 1, num_surprises):
            return
        longer = min(2 * self._interval, _MAX_BACKOFF * self.every)
        self._interval = self.every if self._has_changed else longer
        self._next += self._interval
        self._has_changed = False
        self.number += 1
