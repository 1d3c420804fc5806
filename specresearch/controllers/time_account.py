"""What a controller may spend on something that is to cost a small share of the time."""


class TimeAccount:
    """Keeps account of the time spent on one thing, which is to be a share of all time.

    What is bought, such as a trial, may begin as long as its expected cost is left.

    Args:
        share: Of the time, e.g. 0.005.
        early: Steps whose share may be spent at once, since what is learned early serves longest.
    """

    def __init__(self, share: float, early: float) -> None:
        self.share = share
        self._early = early
        self._seconds = self._spent = 0.0
        self._num_steps = 0

    def observe(self, seconds: float, spent: float = 0.0) -> None:
        """Add the time of a step, and what of it was spent; a negative amount was gained."""
        self._seconds += seconds
        self._spent += spent
        self._num_steps += 1

    @property
    def spent_share(self) -> float:
        """Return the share of the time that was spent."""
        return self._spent / self._seconds if self._seconds else 0.0

    @property
    def allowance(self) -> float:
        """Return the seconds that may still be spent."""
        if not self._num_steps:
            return 0.0
        early = self._early * self._seconds / self._num_steps
        return self.share * (self._seconds + early) - self._spent
