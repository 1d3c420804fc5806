"""Compare the outputs of a run's two sides, and examine greedy differences with the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specresearch.acceptance import AcceptanceSampler
from specresearch.bench.logit_gap import LogitGap, measure_rounding
from specresearch.bench.outputs import MAX_EXAMINED, OutputComparison
from specresearch.bench.rows import GroupRow
from specresearch.data import Prompt
from specresearch.models import CausalLM
from specresearch.rows import BASELINE, RequestRow

NUM_ROUNDED = 32  # texts on which rounding is measured


@dataclass(frozen=True)
class OutputComparer:
    """Compares the outputs of the method with those of the baseline.

    Attributes:
        prompt: Returns the prompt of a dataset row, by its id, after earlier replies.
        verify_greedy: Measure rounding and examine every difference, instead of the first few.
    """

    target: CausalLM
    rule: AcceptanceSampler
    prompt: Callable[[str, Sequence[str]], Prompt]
    is_greedy: bool
    verify_greedy: bool

    def compare(
        self, requests: Sequence[RequestRow], groups: Sequence[GroupRow], *, examine: bool
    ) -> OutputComparison:
        """Compare rows that both sides have decoded.

        Args:
            examine: Whether to ask the target why greedy outputs differ.
        """
        if not self.is_greedy:
            rule = type(self.rule).__name__.lower()
            return OutputComparison.of_samples(rule, requests, groups, lossless=self.rule.lossless)
        if not examine:
            return OutputComparison.greedy(requests)
        baseline = [row for row in requests if row.key.side == BASELINE]
        replies = {(row.key.repeat, row.row, row.turn): row.text for row in baseline}

        def context(plain: RequestRow, position: int) -> list[int]:
            earlier = [replies[plain.key.repeat, plain.row, turn] for turn in range(plain.turn)]
            return [*self.prompt(plain.row, earlier).token_ids, *plain.token_ids[:position]]

        rounding, max_examined = None, MAX_EXAMINED
        if self.verify_greedy:
            middles = [context(row, len(row.token_ids) // 2) for row in baseline[:NUM_ROUNDED]]
            rounding, max_examined = measure_rounding(self.target, middles), None

        def logit_gap(plain: RequestRow, position: int) -> LogitGap:
            return LogitGap.after(self.target, context(plain, position), rounding)

        return OutputComparison.greedy(requests, logit_gap, max_examined)
