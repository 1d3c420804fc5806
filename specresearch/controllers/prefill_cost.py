"""What drafters cost that prefill a prompt only when they first draft for it."""

from specresearch.metrics import StepRecord


class PrefillCost:
    """Measures the lazy prefill of a token, over all steps. Without one it is 0."""

    def __init__(self) -> None:
        self._seconds, self._num_tokens = 0.0, 0

    @property
    def seconds_each(self) -> float:
        """The seconds that a token takes."""
        return self._seconds / max(self._num_tokens, 1)

    def observe(self, record: StepRecord) -> None:
        """Add what a step prefilled."""
        if record.num_lazy_prefill_tokens:
            self._seconds += record.times.lazy_prefill
            self._num_tokens += record.num_lazy_prefill_tokens
