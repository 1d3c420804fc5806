"""The progress of training and of its data, with a token rate."""

import time

from specresearch.progress import Progress


class TokenProgress(Progress):
    """Counts units of work, and the tokens that were processed for them."""

    def __init__(
        self, what: str, total: int, unit: str, num_done: int = 0, *, enabled: bool = True
    ) -> None:
        super().__init__(
            total, unit, what=what, num_done=num_done, figures=self._rate, enabled=enabled
        )
        self._num_tokens = 0
        self._start = time.monotonic()

    def add(self, num_units: int, num_tokens: int) -> None:
        """Count more units as done, and their tokens."""
        self._num_tokens += num_tokens
        self.advance(num_units)

    def _rate(self) -> dict[str, str]:
        seconds = time.monotonic() - self._start
        return {"tokens/s": f"{self._num_tokens / seconds:,.0f}"} if seconds else {}
