"""How long a drafter takes for the prefill that it puts off until a request's first draft."""

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.linear_fit import LinearFit
from specresearch.metrics import StepRecord

_TOKENS = 100.0  # unit that makes token counts about as large as the constant feature
_PROBE_SHARE = 0.01  # of the time, at most, goes into prefill for probes


class LazyPrefillTime:
    """Learns a time per pass and a time per token from the lazy prefills of the current run.

    The time per pass matters: short prefills consist of little else, and their time per token would
    overestimate long ones several times.

    Args:
        memory: Prefills after which an old one counts 1/e.
    """

    def __init__(self, memory: float) -> None:
        self._fit = LinearFit(2, 1, memory)
        self._allowance = 0.0  # seconds that probes may spend

    @property
    def is_known(self) -> bool:
        return self._fit.is_ready

    def observe(self, record: StepRecord) -> None:
        self._allowance += _PROBE_SHARE * record.times.total
        num_tokens = record.num_lazy_prefill_tokens
        if num_tokens:
            self._fit.observe([1.0, num_tokens / _TOKENS], record.times.lazy_prefill)
            self._fit.update()
            self._allowance = 0.0

    def seconds(self, num_tokens: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
        """Return the time of each row in a joint pass; rows with tokens share the constant."""
        per_pass, per_token = self._fit.weights
        is_in_pass = num_tokens > 0
        shared = is_in_pass * per_pass / max(is_in_pass.sum(), 1)
        return shared + per_token * num_tokens / _TOKENS

    def allows_probe(self, num_tokens: Int[np.ndarray, " R"]) -> bool:
        """Return whether a probe may prefill so many tokens so soon after the last prefill."""
        if not num_tokens.any():
            return True
        return float(self.seconds(num_tokens).sum()) <= self._allowance
