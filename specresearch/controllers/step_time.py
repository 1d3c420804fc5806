"""How long a step takes given how much is drafted, learned from the steps of the current run."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.linear_fit import LinearFit
from specresearch.metrics import StepRecord

_TOKENS, _CONTEXT = 16.0, 1000.0  # units that make features about as large as the constant
_COLD = 1.25  # times the estimate beyond which the first step of a length is left out


class StepTime:
    """Three fits, in seconds, that add up to a step without the controller's own time.

    The controller takes most of its time in the few steps that probe, and its time would be
    mistaken for that of what they probe.

    - draft: a constant, another one if anything is drafted, the longest draft (a pass of a draft LM
      for each token), that times rows, and all drafts. Some drafters compute every row, others only
      those that draft.
    - verify: a constant, another one if anything was drafted, tokens, tokens with padding
      (rows x (longest + 1)), and context.
    - overhead (acceptance, commit, host): a constant, and tokens with padding.

    Args:
        num_start: Steps before the first estimate.
        memory: Steps after which an old one counts 1/e.
    """

    def __init__(self, num_start: int, memory: float = 50.0) -> None:
        self.draft = LinearFit(5, num_start, memory)
        self.verify = LinearFit(5, num_start, memory)
        self.overhead = LinearFit(2, num_start, memory)
        self._fits = {"draft": self.draft, "verify": self.verify, "overhead": self.overhead}
        self._seen_lengths: set[int] = set()  # of longest drafts

    @property
    def is_ready(self) -> bool:
        return self.draft.is_ready

    @property
    def num_surprises(self) -> int:
        """Return how many steps in a row were implausibly slow, and are believed in part only."""
        return max(fit.num_surprises for fit in self._fits.values())

    @property
    def was_gain(self) -> bool:
        """Return whether the last step was implausibly fast."""
        return any(fit.was_gain for fit in self._fits.values())

    def seconds(
        self,
        num_rows: int,
        context: int,
        longest: Int[np.ndarray, " W"],
        num_drafts: Float[np.ndarray, "W M"],
    ) -> Float[np.ndarray, "W M"]:
        """Return the time of steps.

        Args:
            longest: Longest draft of step [w, m].
            num_drafts: Drafts of all rows of step [w, m].
        """
        per_draft = (self.draft.weights[4] + self.verify.weights[2]) / _TOKENS
        return self._base_seconds(num_rows, context, longest)[:, None] + per_draft * num_drafts

    def plain(self, num_rows: int, context: int) -> float:
        """Return the time of a step without drafts."""
        return float(self._base_seconds(num_rows, context, 0))

    def _base_seconds(self, num_rows: int, context: int, longest: Any) -> Any:
        """Return the time without what each single draft adds; `longest` may be an array."""
        draft, any_draft, per_pass, per_row, _ = self.draft.weights
        verify, any_ragged, per_token, per_padded, per_context = self.verify.weights
        overhead, per_handled = self.overhead.weights
        rows = num_rows / _TOKENS
        per_slot = per_padded + per_handled
        alone = draft + verify + overhead + per_context * context / _CONTEXT
        alone = alone + per_token * rows + per_slot * rows
        return (
            alone
            + (any_draft + any_ragged) * (longest > 0)
            + (per_pass + (per_row + per_padded + per_handled) * rows) * longest
        )

    def observe(self, record: StepRecord) -> dict[str, float]:
        """Take note of a step; return the prior estimates of its three parts, by name."""
        num_rows = len(record.request_ids)
        longest = record.num_nodes - 1
        num_drafts = sum(record.num_draft_tokens)
        any_draft = float(longest > 0)
        padded = num_rows * (longest + 1) / _TOKENS
        tokens = (num_rows + num_drafts) / _TOKENS
        row_passes = num_rows * longest / _TOKENS
        features = {
            "draft": [1.0, any_draft, float(longest), row_passes, num_drafts / _TOKENS],
            "verify": [1.0, any_draft, tokens, padded, sum(record.context) / _CONTEXT],
            "overhead": [1.0, padded],
        }
        times = record.times
        overhead = times.work - times.propose - times.verify
        seconds = {"draft": times.propose, "verify": times.verify, "overhead": overhead}
        estimates = {name: fit.predict(features[name]) for name, fit in self._fits.items()}
        is_first = longest not in self._seen_lengths
        self._seen_lengths.add(longest)
        is_cold = is_first and times.work > _COLD * sum(estimates.values())
        if not (self.is_ready and is_cold):
            for name, fit in self._fits.items():
                fit.observe(features[name], seconds[name])
        return estimates

    def update(self) -> None:
        """Let the estimates follow the steps since the last call."""
        for fit in self._fits.values():
            fit.update()
