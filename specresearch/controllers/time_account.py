"""What a controller may spend on something that is to cost a small share of the time."""

_EARLY = 500.0  # steps whose share may be spent at once, as what is learned early serves longest


class TimeAccount:
    """Keeps account of the time spent on one thing, which is to be a share of all time.

    What is bought, such as a trial, may begin as long as its expected cost is left.

    Args:
        share: Of the time, e.g. 0.005.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._seconds = self._spent = 0.0
        self._num_steps = 0

    def observe(self, seconds: float, spent: float = 0.0) -> None:
        """Add the time of a step, and what of it was spent; a negative amount was gained."""
        self._seconds += seconds
        self._spent += spent
        self._num_steps += 1

    @property
    def allowance(self) -> float:
        """Return the seconds that may still be spent."""
        if not self._num_steps:
            return 0.0
        early = _EARLY * self._seconds / self._num_steps
        return self.share * (self._seconds + early) - self._spent
