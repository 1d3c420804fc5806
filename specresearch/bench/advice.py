"""What a run that was slower than plain decoding should have drafted, by its own steps."""

from collections.abc import Iterator, Sequence

import numpy as np

from specresearch.bench.rows import GroupRow
from specresearch.calibration import RequestCosts, fastest
from specresearch.calibration.measurement import PLAIN, Prediction, ShapeMeasurement
from specresearch.engine import Step
from specresearch.proposers.draft_shape import DraftShape
from specresearch.rows import BASELINE, METHOD


class Advisor:
    """Observes the steps of both sides, which tell what every smaller draft would have done.

    Args:
        shape: What the method drafts in every step.
    """

    def __init__(self, shape: DraftShape) -> None:
        self._shape = shape
        self._steps = ShapeMeasurement([shape])
        self._steps.times.draft[shape.kind].add(0, 0.0)  # a drafter's time grows with its passes
        self._num_plain = 0
        self.side: str | None = None

    def __call__(self, step: Step) -> None:
        if self.side == BASELINE:
            self._steps.add(step, PLAIN)
            self._num_plain += 1
        elif self.side == METHOD:
            self._steps.add(step, self._shape)

    def advise(self, groups: Sequence[GroupRow], batch_size: int) -> str | None:
        """Return a sentence on what to do instead; None if no step of this session tells."""
        rows = [row for row in groups if row.key.side == METHOD]
        num_requests = sum(row.num_requests for row in rows)
        if not (num_requests and self._num_plain and self._steps.tables[self._shape.kind].num_rows):
            return None
        costs = RequestCosts(
            round(sum(row.num_generated_tokens for row in rows) / num_requests),
            sum(row.prefill - row.draft_prefill for row in rows) / num_requests,
            sum(row.draft_prefill for row in rows) / num_requests,
        )
        plain = self._steps.plain(batch_size)
        options = [*self._steps.predictions(), *self._chains()]
        best, speedup = fastest(options, plain, costs, batch_size)
        by_steps = f"{speedup:.2f}x the speed of plain decoding by this run's steps"
        if speedup > 1:
            return f"faster: {best.shape.overrides}, {by_steps}"
        return (
            f"no smaller draft would have paid ({best.shape}: {by_steps}); decode plainly with "
            "controller.num_draft_tokens=0, or add controller=goodput, which drafts where it pays"
        )

    def _chains(self) -> Iterator[Prediction]:
        """Yield what the likeliest path of a dynamic tree would have done alone."""
        if self._shape.depth is None:
            return
        table = self._steps.tables[self._shape.kind]
        first = [ranks[0] for ranks in table.by_rank.acceptance() if ranks]
        tokens = 1 + np.cumsum(np.cumprod(first))
        for length, expected in enumerate(tokens.tolist(), start=1):
            narrow = DraftShape(length, self._shape.tree, length)
            shape = DraftShape(length, "chain")
            yield Prediction(shape, expected, expected, self._steps.seconds(narrow))
