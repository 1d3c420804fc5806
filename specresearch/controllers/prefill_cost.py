"""What drafters cost that prefill a prompt only when they first draft for it."""

import numpy as np
from jaxtyping import Float

from specresearch.batch import Batch
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

    def of_all(self, batch: Batch) -> Float[np.ndarray, " R"]:
        """Return the lazy prefill of whole prompts, for each token of whole outputs.

        A prompt that has been read is paid for, but who comes next will have to pay again.
        """
        prompts = np.array([len(row.tokens) - row.num_generated for row in batch.rows])
        outputs = np.array([row.num_generated + row.num_remaining for row in batch.rows])
        return self.seconds_each * prompts / outputs
