"""Did a side change what the target says? Greedy outputs are compared with plain decoding's, sampled ones are checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.acceptance import AcceptanceSampler
from specresearch.bench.logit_gap import LogitGap
from specresearch.bench.output_check import P_VALUES, OutputScores
from specresearch.bench.outputs import OutputComparison
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.workload import Workload
from specresearch.models import CausalLM
from specresearch.rows import BASELINE, RequestRow

MAX_EXAMINED = 32  # differences of a side that are looked into
CHECK = (*P_VALUES, "output_z", "baseline_output_z")  # figures of sampled outputs


@dataclass(frozen=True)
class SideOutputs:
    """One side's outputs. greedy, sampled: of the requests of that kind; at least one of them is there."""

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
        """Whether a greedy output differs, be it by rounding."""
        return self.greedy is not None and self.greedy.num_equal < self.greedy.num_compared

    @property
    def statement(self) -> str:
        """What is wrong comes first."""
        return "; ".join(
            part.statement for part in sorted(self.parts, key=lambda part: not part.is_wrong)
        )

    @property
    def figures(self) -> dict[str, Any]:
        told = self.parts[0].figures
        if self.sampled is not None:
            of_sampled = self.sampled.figures
            told |= {name: of_sampled[name] for name in CHECK}
        return told | {"output_statement": self.statement}


def compare_outputs(
    requests: Iterable[RequestRow],
    passes: Iterable[PassRow],
    sides: Sequence[str],
    workload: Workload,
    target: CausalLM,
    rule: AcceptanceSampler,
) -> dict[str, SideOutputs]:
    """Compare every side with plain decoding. passes: those that are complete."""
    rows = list(passes)
    greedy = _greedy(requests, sides, workload, target) if workload.has_greedy else {}
    name = type(rule).__name__.lower()
    others = [side for side in sides if side != BASELINE]
    sampled = {}
    if workload.has_sampled:
        sampled = {side: check_of(rows, side, name, lossless=rule.lossless) for side in others}
    return {side: SideOutputs(greedy.get(side), sampled.get(side)) for side in others}


def check_of(
    passes: Sequence[PassRow], side: str, rule: str, *, lossless: bool
) -> OutputComparison:
    """Return what the check found in a side's sampled outputs, with plain decoding's as a control."""
    own, plain = (scores_of(passes, name) for name in (side, BASELINE))
    return OutputComparison.sampled(rule, lossless=lossless, scores=own, baseline=plain)


def scores_of(passes: Iterable[PassRow], side: str) -> OutputScores | None:
    """Return the scores of all passes of a side together; None where one has none."""
    found = [row.scores for row in passes if row.key.side == side]
    known = [scores for scores in found if scores is not None]
    return sum(known, OutputScores()) if known and len(known) == len(found) else None


def _greedy(
    requests: Iterable[RequestRow], sides: Sequence[str], workload: Workload, target: CausalLM
) -> dict[str, OutputComparison]:
    planned = workload.requests
    greedy = [row for row in requests if planned[int(row.id)].sampling.is_greedy]
    baseline = [row for row in greedy if row.key.side == BASELINE]
    answered = {(row.key.repeat, row.id) for row in baseline}

    def gap(row: RequestRow, position: int) -> LogitGap:
        prompt = planned[int(row.id)].prompt_ids
        return LogitGap.after(target, [*prompt, *row.token_ids[:position]])

    comparisons = {}
    for side in sides:
        if side == BASELINE:
            continue
        rows = []
        for row in greedy:
            if row.key.side == side and (row.key.repeat, row.id) in answered:
                rows.append(row)
        comparisons[side] = OutputComparison.greedy(
            [*baseline, *rows], gap, MAX_EXAMINED, side=side
        )
    return comparisons


def joined(outputs: Mapping[str, SideOutputs]) -> dict[str, Any]:
    """Of all sides together: the figures of results.json, and the statement of the first side that is not as it should be.

    P-values are the lowest of all sides: one that is wrong is seen.
    """
    found = [side.greedy for side in outputs.values() if side.greedy is not None]
    num_compared, num_equal = (
        sum(getattr(o, name) for o in found) for name in ("num_compared", "num_equal")
    )
    num_ties = sum(o.num_ties for o in found)
    checked = [
        side.sampled.p_values
        for side in outputs.values()
        if side.sampled is not None and side.sampled.p_values
    ]
    lowest = [min(values) for values in zip(*checked, strict=True)] or [None, None]
    return {
        "outputs_equal": num_equal == num_compared if num_compared else None,
        "outputs_equal_but_for_ties": num_equal + num_ties == num_compared
        if num_compared
        else None,
        "num_outputs_equal": num_equal if num_compared else None,
        "num_outputs_compared": num_compared,
        "num_rounding_ties": num_ties,
        "output_statement": _statement(outputs, num_compared),
        "output_p_value": lowest[0],
        "baseline_output_p_value": lowest[1],
    }


def _statement(outputs: Mapping[str, SideOutputs], num_compared: int) -> str:
    """What is wrong goes before what rounding explains."""
    if not outputs:
        return OutputComparison.of_nothing().statement
    wrong = [side for side, own in outputs.items() if own.is_wrong]
    worst = [*wrong, *(side for side, own in outputs.items() if own.differs)]
    if worst:
        told = outputs[worst[0]].statement
        return f"{worst[0]}: {told}" if len(outputs) > 1 else told
    first = next(iter(outputs.values()))
    if not num_compared:
        return first.statement
    equal = f"output unchanged: {num_compared} of {num_compared} greedy outputs equal plain decoding's token for token"
    return equal if first.sampled is None else f"{equal}; {first.sampled.statement}"
