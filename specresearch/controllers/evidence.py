"""What steps have shown of drafts: how many were accepted, and how many were made at all."""

from collections.abc import Sequence
from dataclasses import dataclass

from specresearch.metrics import StepRecord


@dataclass
class Share:
    """How often something happened, of how often it could have; both fading."""

    happened: float = 0.0
    tried: float = 0.0

    def add(self, happened: float, tried: int, memory: float) -> None:
        self.happened += happened - self.happened / memory
        self.tried += tried - self.tried / memory

    def rate(self, prior: float, weight: float) -> float:
        return (self.happened + weight * prior) / (self.tried + weight)

    def error(self, mean: float) -> float:
        """Standard error of the rate, if it is `mean`."""
        return (mean * (1 - mean) / (self.tried + 1)) ** 0.5


def judged_drafts(record: StepRecord) -> tuple[Sequence[float], Sequence[int]]:
    """Accepted and judged drafts of every row."""
    if not any(record.num_draft_tokens):
        num_rows = len(record.request_ids)
        return [0.0] * num_rows, [0] * num_rows
    accepted, judged = zip(
        *(_judged(record, b) for b in range(len(record.request_ids))), strict=True
    )
    return accepted, judged


def _judged(record: StepRecord, b: int) -> tuple[float, int]:
    """Of a row; the expected number where the rule says it, which varies less.

    An end token cuts the row behind an accepted draft: what came after was not judged.
    """
    accepted, drafted = record.num_accepted_tokens[b], record.num_draft_tokens[b]
    was_refused = accepted < drafted and record.num_new_tokens[b] > accepted
    number = accepted + was_refused
    if record.expected_acceptance is None:
        return float(accepted), number
    return float(sum(record.expected_acceptance[b][:number])), number
