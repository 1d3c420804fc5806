"""Trials: drafts for a few steps to see whether they would pay, or none to see if they still do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specresearch.controllers.draft_plan import DraftPlan, Prospects, TimeLimit

_LEAST = 2  # steps of a trial, of which the first is left out of the times
_PLAIN = 3  # steps of one without drafts


@dataclass(frozen=True)
class DraftTrial:
    """What is tried, and for how many steps.

    Attributes:
        plan: Its time has each step's share of the lazy prefill.
        lost: Seconds that all its steps are expected to lose.
    """

    plan: DraftPlan
    num_steps: int
    lost: float

    @staticmethod
    def of_plain(plain: DraftPlan, best: DraftPlan) -> "DraftTrial":
        """Return a trial without drafts, where they seem to pay.

        Steps with drafts do not tell what one without them takes.
        """
        return DraftTrial(plain, _PLAIN, _PLAIN * (plain.seconds - plain.tokens / best.rate))

    @staticmethod
    def of(
        prospects: Prospects, room: Sequence[int], allowance: float, most: int, deepest: int
    ) -> "DraftTrial":
        """Return a trial by those of whom the allowance can pay the lazy prefill.

        It is as deep as loses least, down to `deepest`. It lasts for so many steps, up to `most`,
        that they lose about as much as the prefill: the more a trial costs to begin, the more it
        should show.

        Args:
            room: The drafts that each row can still use.
            allowance: Seconds that may be lost.
        """
        spent = prospects.prefill * (np.array(room) + 1)
        order = np.argsort(spent, kind="stable")
        is_paid = np.empty(len(spent), dtype=bool)
        is_paid[order] = spent[order].cumsum() <= allowance
        free = replace(prospects, prefill=0 * spent)
        limits = np.where(is_paid, prospects.limits, 0)
        steps = (
            free.plan(np.maximum(np.minimum(limits, depth), prospects.given))
            for depth in range(1, deepest + 1)
        )
        step = max(steps, key=lambda plan: plan.rate)
        prefill = float(spent[step.depths > 0].sum())
        lost = step.seconds - step.tokens / prospects.plain.rate
        num = int(min(prefill, allowance - prefill) / lost) if lost > 0 else most
        num = min(max(num, _LEAST), most)
        plan = replace(step, seconds=step.seconds + prefill / num)
        return DraftTrial(plan, num, num * lost + prefill)

    def may_begin(self, plain: DraftPlan, limit: TimeLimit | None, allowance: float) -> bool:
        """Return whether it asks for drafts, can be paid for, and makes nobody fall behind."""
        is_other = bool((self.plan.depths > plain.depths).any())
        is_within = limit is None or self.plan.seconds <= limit(self.plan.depths)
        return is_other and is_within and self.lost <= allowance
