"""How many drafts of one answer were accepted, as servers say it in the answer itself."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from specresearch.metrics import Counts

# vLLM's names first, then TensorRT-LLM's
NUM_ACCEPTED = ("num_accepted_draft_tokens", "total_accepted_draft_tokens")
NUM_DRAFTED = ("num_draft_tokens", "total_draft_tokens")


def counts_of_answer(report: Mapping[str, Any], num_tokens: int) -> Counts:
    """Return the counts of an answer from its `speculative_decoding` object.

    vLLM has it in `metrics`, with `--per-request-spec-decode-metrics`, and TensorRT-LLM in the
    choice. Both have a histogram of verify steps by the number of drafts that they accepted.

    Args:
        num_tokens: Tokens of the answer.

    Raises:
        KeyError, TypeError, ValueError: If it has another form.
    """
    steps = list(map(int, report["acceptance_histogram"]))
    num_accepted = int(_first(report, NUM_ACCEPTED))
    num_drafted = int(_first(report, NUM_DRAFTED))
    at_least = list(accumulate(reversed(steps)))[::-1]  # steps that accepted so many or more
    lengths = report.get("per_step_drafted")
    accepted, reached = at_least[1:], at_least[:-1]
    if lengths is not None:
        reached = _reached(lengths, report["per_step_accepted"], len(accepted))
    return Counts(
        num_target_forwards=max(num_tokens - num_accepted, sum(steps)),
        num_drafts=sum(steps),
        num_draft_tokens=num_drafted,
        num_accepted_tokens=num_accepted,
        num_generated_tokens=num_tokens,
        reached=reached,
        accepted=accepted,
        expected=list(map(float, accepted)),
    )


def _first(report: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in report:
            return report[name]
    raise KeyError(names[0])


def _reached(drafted: Sequence[int], accepted: Sequence[int], depth: int) -> list[int]:
    """Return how many drafts had a token at each position, everything before it accepted."""
    reached = [0] * depth
    for length, kept in zip(drafted, accepted, strict=True):
        for position in range(min(length, kept + 1, depth)):
            reached[position] += 1
    return reached
