"""Did a side change the output? Greedy outputs are compared, sampled outputs are checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.acceptance import AcceptanceSampler
from specresearch.bench.logit_gap import LogitGap
from specresearch.bench.output_check import P_VALUES, OutputScores
from specresearch.bench.outputs import OutputComparison
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.workload import LoadWorkload
from specresearch.models import CausalLM
from specresearch.rows import BASELINE, RequestRow

MAX_EXAMINED = 32  # differences of a side that are examined
SCORE_FIGURES = (*P_VALUES, "output_z", "baseline_output_z")  # of sampled outputs


@dataclass(frozen=True)
class SideOutputs:
    """The outputs of one side compared with the baseline's.

    Attributes:
        greedy: Its greedy requests; None if there are none.
        sampled: Its sampled requests; None if there are none. At least one of the two is given.
    """

    greedy: OutputComparison | None = None
    sampled: OutputComparison | None = None

    @property
    def parts(self) -> tuple[OutputComparison, ...]:
        return tuple(part for part in (self.greedy, self.sampled) if part is not None)

    @property
    def is_wrong(self) -> bool:
        return any(part.is_wrong for part in self.parts)

    @property
    def differs(self) -> bool:
        """Return whether a greedy output differs, even if only by rounding."""
        return self.greedy is not None and self.greedy.num_equal < self.greedy.num_compared

    @property
    def statement(self) -> str:
        """Return the findings in words, wrong outputs first."""
        parts = sorted(self.parts, key=lambda part: not part.is_wrong)
        return "; ".join(part.statement for part in parts)

    @property
    def figures(self) -> dict[str, Any]:
        figures = self.parts[0].figures
        if self.sampled is not None:
            sampled = self.sampled.figures
            figures |= {name: sampled[name] for name in SCORE_FIGURES}
        return figures | {"output_statement": self.statement}


def compare_outputs(
    requests: Iterable[RequestRow],
    passes: Sequence[PassRow],
    sides: Sequence[str],
    workload: LoadWorkload,
    target: CausalLM,
    rule: AcceptanceSampler,
) -> dict[str, SideOutputs]:
    """Compare every side with the baseline. Only finished passes count."""
    others = [side for side in sides if side != BASELINE]
    greedy = _compare_greedy(requests, others, workload, target) if workload.has_greedy else {}
    rule_name = type(rule).__name__.lower()
    outputs = {}
    for side in others:
        sampled = None
        if workload.has_sampled:
            sampled = check_sampled(passes, side, rule_name, lossless=rule.lossless)
        outputs[side] = SideOutputs(greedy.get(side), sampled)
    return outputs


def check_sampled(
    passes: Sequence[PassRow], side: str, rule: str, *, lossless: bool
) -> OutputComparison:
    """Return what the check of a side's sampled outputs found, with the baseline as control."""
    return OutputComparison.sampled(
        rule,
        lossless=lossless,
        scores=scores_of(passes, side),
        baseline=scores_of(passes, BASELINE),
    )


def scores_of(passes: Iterable[PassRow], side: str) -> OutputScores | None:
    """Return the scores of all passes of a side, or None if a pass has none."""
    return OutputScores.total(row.scores for row in passes if row.key.side == side)


def _compare_greedy(
    requests: Iterable[RequestRow], sides: Sequence[str], workload: LoadWorkload, target: CausalLM
) -> dict[str, OutputComparison]:
    planned = workload.requests
    greedy = [row for row in requests if planned[int(row.id)].sampling.is_greedy]
    baseline = [row for row in greedy if row.key.side == BASELINE]
    answered = {(row.key.repeat, row.id) for row in baseline}
    greedy = [row for row in greedy if (row.key.repeat, row.id) in answered]

    def gap(row: RequestRow, position: int) -> LogitGap:
        prompt = planned[int(row.id)].prompt_ids
        return LogitGap.after(target, [*prompt, *row.token_ids[:position]])

    comparisons = {}
    for side in sides:
        comparisons[side] = OutputComparison.greedy(greedy, gap, MAX_EXAMINED, side=side)
    return comparisons


def combined_figures(outputs: Mapping[str, SideOutputs]) -> dict[str, Any]:
    """Return the figures of all sides together, and the statement of the worst side.

    P-values are the lowest of all sides, so that one wrong side shows.
    """
    greedy = [side.greedy for side in outputs.values() if side.greedy is not None]
    num_compared = sum(comparison.num_compared for comparison in greedy)
    num_equal = sum(comparison.num_equal for comparison in greedy)
    num_ties = sum(comparison.num_ties for comparison in greedy)
    sampled = [side.sampled for side in outputs.values() if side.sampled is not None]
    p_values = [comparison.p_values for comparison in sampled if comparison.p_values]
    lowest = [min(values) for values in zip(*p_values, strict=True)] or [None, None]
    is_compared = num_compared > 0
    return {
        "outputs_equal": num_equal == num_compared if is_compared else None,
        "outputs_equal_but_for_ties": num_equal + num_ties == num_compared if is_compared else None,
        "num_outputs_equal": num_equal if is_compared else None,
        "num_outputs_compared": num_compared,
        "num_rounding_ties": num_ties,
        "output_statement": _statement(outputs, num_compared),
        "output_p_value": lowest[0],
        "baseline_output_p_value": lowest[1],
    }


def _statement(outputs: Mapping[str, SideOutputs], num_compared: int) -> str:
    """Return the statement of a wrong side, or else of one that differs by rounding, or of all."""
    if not outputs:
        return OutputComparison.of_nothing().statement
    by_severity = sorted(outputs, key=lambda side: not outputs[side].is_wrong)
    for name in by_severity:
        side = outputs[name]
        if side.is_wrong or side.differs:
            return f"{name}: {side.statement}" if len(outputs) > 1 else side.statement
    first = next(iter(outputs.values()))
    if not num_compared:
        return first.statement
    equal = (
        f"output unchanged: {num_compared} of {num_compared} greedy outputs equal plain decoding's "
        "token for token"
    )
    return equal if first.sampled is None else f"{equal}; {first.sampled.statement}"
