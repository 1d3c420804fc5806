"""What is expected of drafts, learned from the steps of the run."""

from collections.abc import Sequence

import numpy as np

from specresearch.batch import Batch
from specresearch.controllers.draft_plan import Prospects
from specresearch.controllers.evidence import AskedStep, Evidence
from specresearch.controllers.prefill_cost import PrefillCost
from specresearch.controllers.score_calibration import ScoreCalibration
from specresearch.controllers.step_time import StepTime
from specresearch.controllers.trace import ControllerTrace
from specresearch.proposal import DraftForecast

# Drafts of its own after which a request's acceptance counts as much as the run's: where it has to
# be found out soon who loses under `max_slowdown`; and otherwise, since drafts are accepted in
# bursts, so that few refusals say little.
_BOUND_WEIGHT, _WEIGHT = 10.0, 40.0


class RunEstimates:
    """Times, acceptance and what scores mean, as the steps of the run have shown them.

    Args:
        num_levels: The longest path that is drafted.
        memory: Steps after which a measured time or acceptance counts 1/e.
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean; None for the default.
        max_slowdown: The most that a request's time per token may be, relative to plain steps.
        forecast: What was measured before the run.
        finds_depth: Whoever drafts is asked for every level, see `DraftKind`.
    """

    def __init__(
        self,
        num_levels: int,
        memory: float,
        prior_weight: float | None,
        max_slowdown: float | None,
        forecast: DraftForecast | None,
        *,
        finds_depth: bool = False,
    ) -> None:
        self.max_slowdown, is_bound = max_slowdown, max_slowdown is not None
        weight = prior_weight or (_BOUND_WEIGHT if is_bound else _WEIGHT)
        self.evidence = Evidence(
            num_levels,
            memory,
            weight,
            counts_unmade=is_bound,
            finds_depth=finds_depth,
            forecast=forecast,
        )
        self.step_time, self.prefill = StepTime(memory), PrefillCost()
        self.scores = ScoreCalibration(num_levels, memory, forecast)
        if forecast is not None:
            self.step_time.foresee(forecast)

    def learn(self, steps: Sequence[AskedStep], trace: ControllerTrace) -> None:
        """Let the estimates follow new steps, and trace what was expected of these."""
        acceptance = float(self.evidence.rates()[0])
        for step in steps:
            record, asked = step.record, step.asked
            estimates = self.step_time.observe(record, max(asked), sum(map(bool, asked)))
            self.prefill.observe(record)
            seconds = sum(estimates.values())
            if self.max_slowdown is not None:
                # By estimates: an outlier would have hit a plain step just as well.
                plain = self.step_time.plain(len(asked), sum(record.context))
                for request, new in zip(step.requests, record.num_new_tokens, strict=True):
                    request.slack += new * self.max_slowdown * plain - seconds
            trace.add(
                num_requests=len(asked),
                mean_length=sum(record.num_draft_tokens) / len(asked),
                acceptance=acceptance,
                **{f"{name}_seconds": value for name, value in estimates.items()},
                estimated_seconds=seconds,
                measured_seconds=record.times.total,
            )
        self.step_time.solve()
        self.scores.observe(steps)
        self.evidence.observe(steps)

    def prospects(
        self,
        batch: Batch,
        limits: Sequence[int],
        given: Sequence[int],
        num_drafts: int,
    ) -> Prospects:
        """Return what is expected of drafts in the next step.

        Args:
            limits: The most levels of each row; 0 for rows that may not draft.
            given: The depth of rows whose number of drafts is given; 0 for others.
            num_drafts: The most drafts of a row in a step.
        """
        lengths = [len(row.tokens) for row in batch.rows]
        unread = self.evidence.num_unprefilled(lengths, num_drafts)
        return Prospects(
            self.evidence.survival(),
            self.evidence.nodes(),
            np.array(limits),
            np.array(given),
            self.prefill.seconds_each * unread / (np.array(batch.room) + 1),
            self.step_time.costs(),
            self.step_time.plain(len(batch), sum(lengths) - len(batch)),
        )
