"""Whether a side's text is plain decoding's, judged in one place for every table and page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.rows import METHOD


class OutputVerdict(Enum):
    """Whether text is the same as plain decoding's, as tables say it.

    It is unknown where greedy outputs differ and nobody asked the target whether rounding explains
    all of the differences. A lossy rule does not claim to leave the text alone.
    """

    SAME, CHANGED, UNKNOWN, LOSSY = "yes", "no", "unknown", "lossy"


def judge(
    num_different: int, num_examined: int, num_ties: int, p_values: Sequence[float]
) -> OutputVerdict:
    """Return the verdict on a side whose rule claims to be lossless.

    Args:
        num_different: Greedy outputs that differ from plain decoding's.
        num_examined: How many of the differences were examined with the target.
        num_ties: How many of these rounding explains.
        p_values: Of sampled outputs, and of plain decoding's as a control.
    """
    if num_examined > num_ties or any(p_value < CHANGED for p_value in p_values):
        return OutputVerdict.CHANGED
    return OutputVerdict.UNKNOWN if num_different > num_examined else OutputVerdict.SAME


@dataclass(frozen=True)
class Output:
    """What was found of a side's text.

    Attributes:
        statement: The finding in words.
        verdict: None if nothing was compared.
        num_equal: Greedy outputs, if all are equal and no others were checked.
    """

    statement: str = ""
    verdict: OutputVerdict | None = None
    num_equal: int = 0

    @property
    def is_wrong(self) -> bool:
        """Return whether it is known to differ."""
        return self.verdict is OutputVerdict.CHANGED

    @staticmethod
    def of(figures: Mapping[str, Any], *, lossless: bool) -> "Output":
        """Return the finding from the output figures of a side, given what its rule claims."""
        statement = figures["output_statement"]
        if not lossless:
            return Output(statement, OutputVerdict.LOSSY)
        p_values = [figures[name] for name in P_VALUES if figures[name] is not None]
        num_compared, num_equal = figures["num_outputs_compared"], figures["num_outputs_equal"] or 0
        differences = figures["output_differences"]
        verdict = judge(
            num_different=num_compared - num_equal,
            num_examined=sum(difference["logits"] is not None for difference in differences),
            num_ties=figures["num_rounding_ties"],
            p_values=p_values,
        )
        # Statements on text are kept as they are, since sums of outputs speak of tokens.
        are_equal = num_equal == num_compared and not p_values and not figures.get("is_text")
        return Output(statement, verdict, num_equal if are_equal else 0)


def outputs_of(results: Mapping[str, Any]) -> dict[str, Output]:
    """Return the finding of every side that drafts, from the results of a run or a load test."""
    method = (results.get("provenance") or {}).get("method")
    if method is None:
        return {}
    # A run has one method, whose output figures are in its summary.
    figures = results["outputs"] if "kind" in results else {METHOD: results["summary"]}
    lossless = method["lossless"]
    return {side: Output.of(part, lossless=lossless) for side, part in figures.items()}
