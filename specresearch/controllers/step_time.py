"""How long a step takes, given how much is drafted: learnt from the steps of this very run."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.linear_fit import LinearFit
from specresearch.metrics import StepRecord

_TOKENS, _CONTEXT = 16.0, 1000.0  # units that bring features to the size of the constant
_COLD = 1.25  # the first step of a length that takes so many times as long as it should says nothing of later ones


class StepTime:
    """Three fits, in seconds, that add up to a step but for what the controller itself takes: that comes in few steps, in those
    that measure above all, and would be taken for the time of what they measure.

    draft: a constant, one more if anything is drafted, the longest draft (a pass of a draft LM for each), that times rows, and
    all drafts: some drafters compute every row, others those that draft.
    verify: a constant, one more if anything was drafted, tokens, tokens with padding (rows x (longest + 1)), and context.
    overhead (acceptance, commit, host): a constant, and tokens with padding.

    num_start: steps before the first estimate. memory: steps after which an old one counts 1/e.
    """

    def __init__(self, num_start: int, memory: float = 50.0) -> None:
        self.draft = LinearFit(5, num_start, memory)
        self.verify = LinearFit(5, num_start, memory)
        self.overhead = LinearFit(2, num_start, memory)
        self._met: set[int] = set()  # longest drafts

    @property
    def is_ready(self) -> bool:
        return self.draft.is_ready

    @property
    def num_surprises(self) -> int:
        """Steps in a row that took longer than was credible, and whose times are believed in part only."""
        return max(fit.num_surprises for fit in (self.draft, self.verify, self.overhead))

    @property
    def was_gain(self) -> bool:
        """The last step took far less than was expected."""
        return any(fit.was_gain for fit in (self.draft, self.verify, self.overhead))

    def seconds(
        self,
        num_rows: int,
        context: int,
        longest: Int[np.ndarray, " W"],
        num_drafts: Float[np.ndarray, "W M"],
    ) -> Float[np.ndarray, "W M"]:
        """Of steps whose longest draft is `longest[w]` and which have `num_drafts[w, m]` drafts in all."""
        each_draft = (self.draft.weights[4] + self.verify.weights[2]) / _TOKENS
        return self._but_for_drafts(num_rows, context, longest)[:, None] + each_draft * num_drafts

    def plain(self, num_rows: int, context: int) -> float:
        """Seconds of a step without drafts."""
        return float(self._but_for_drafts(num_rows, context, 0))

    def _but_for_drafts(self, num_rows: int, context: int, longest: Any) -> Any:
        """Seconds without what every single draft adds; longest: an array, or one number."""
        c, begun, each, each_row, _ = self.draft.weights
        d, ragged, token, padded, known = self.verify.weights
        e, handled = self.overhead.weights
        rows = num_rows / _TOKENS
        alone = c + d + e + known * context / _CONTEXT + token * rows + (padded + handled) * rows
        return (
            alone
            + (begun + ragged) * (longest > 0)
            + (each + (each_row + padded + handled) * rows) * longest
        )

    def observe(self, record: StepRecord) -> dict[str, float]:
        """Takes note of a step; returns what it would have said of the step's three parts, by name."""
        num_rows, longest, num_drafts = (
            len(record.request_ids),
            record.num_nodes - 1,
            sum(record.num_draft_tokens),
        )
        begun, padding, tokens = (
            float(longest > 0),
            num_rows * (longest + 1) / _TOKENS,
            (num_rows + num_drafts) / _TOKENS,
        )
        times = record.times
        observed = {
            "draft": (
                self.draft,
                [1.0, begun, float(longest), num_rows * longest / _TOKENS, num_drafts / _TOKENS],
                times.propose,
            ),
            "verify": (
                self.verify,
                [1.0, begun, tokens, padding, sum(record.context) / _CONTEXT],
                times.verify,
            ),
            "overhead": (self.overhead, [1.0, padding], times.work - times.propose - times.verify),
        }
        estimates = {name: fit.predict(features) for name, (fit, features, _) in observed.items()}
        is_first = longest not in self._met
        self._met.add(longest)
        if self.is_ready and is_first and times.work > _COLD * sum(estimates.values()):
            return estimates
        for fit, features, seconds in observed.values():
            fit.observe(features, seconds)
        return estimates

    def update(self) -> None:
        """Let estimates follow what was observed since the last call."""
        for fit in (self.draft, self.verify, self.overhead):
            fit.update()
