"""When a controller measures what it does not do at the moment."""

_PATIENCE = 4  # times `every` between two measurements, at most, while they tell nothing new
_MAX_REPEATS = 4  # of a measurement that came out strange


class Probes:
    """A measurement every `every` steps, and up to four times as rarely while nothing new is found; one that came out strange is
    repeated.

    number: of the measurement that is under way or comes next, from 1.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.number = 1
        self._next = self._interval = every
        self._has_news = False

    def is_due(self, step: int, num_strange: int) -> bool:
        """num_strange: how many steps in a row took another time than was expected, up to this one."""
        since = step - self._next
        return since == 0 or 0 < since == num_strange <= _MAX_REPEATS

    def is_first(self, step: int) -> bool:
        """Whether a step measures, and not for a second time."""
        return step == self._next

    def tell(self, is_news: bool) -> None:
        """Something has changed, so that the next measurement should come soon."""
        self._has_news |= is_news

    def observe(self, step: int, num_strange: int) -> None:
        """A step is over; num_strange: in a row, this one included."""
        if step < self._next or self.is_due(step + 1, num_strange):
            return
        self._interval = (
            self.every if self._has_news else min(2 * self._interval, _PATIENCE * self.every)
        )
        self._next += self._interval
        self._has_news = False
        self.number += 1
