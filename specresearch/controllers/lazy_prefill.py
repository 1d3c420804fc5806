"""How long a drafter takes to read what it has put off."""

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.linear_fit import LinearFit
from specresearch.metrics import StepRecord

_TOKENS = 100.0  # a unit that brings them to the size of the constant
_SHARE = 0.01  # of the time, at most, goes into reading for measurements


class LazyPrefillTime:
    """A time for every pass and one for every token, learnt from the readings of this very run.

    Short readings are nearly all constant: by their time per token long ones would seem several times as slow as they are.

    memory: readings after which an old one counts 1/e.
    """

    def __init__(self, memory: float) -> None:
        self._fit = LinearFit(2, 1, memory)
        self._spare = 0.0  # seconds

    @property
    def is_known(self) -> bool:
        return self._fit.is_ready

    def observe(self, record: StepRecord) -> None:
        self._spare += _SHARE * record.times.total
        if record.num_lazy_prefill_tokens:
            self._fit.observe(
                [1.0, record.num_lazy_prefill_tokens / _TOKENS], record.times.lazy_prefill
            )
            self._fit.update()
            self._spare = 0.0

    def seconds(self, num_tokens: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Of rows that read so many tokens in one pass, which all that read any share."""
        once, each = self._fit.weights
        reads = num_tokens > 0
        return reads * once / max(reads.sum(), 1) + each * num_tokens / _TOKENS

    def is_time_for(self, num_tokens: Int[np.ndarray, " R"]) -> bool:
        """Whether a measurement may have rows read so many tokens: not when the last reading is too short a time ago for that."""
        return not num_tokens.any() or float(self.seconds(num_tokens).sum()) <= self._spare
