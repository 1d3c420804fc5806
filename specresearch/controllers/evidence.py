"""What steps have shown of drafts: how many were accepted, and how many were made at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specresearch.metrics import StepRecord

_PRIOR_DRAFTS = 4.0  # that what is believed before anything was seen counts as much as
_PRIOR_HOPE = 0.25  # by how much acceptance is then taken for higher


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


@dataclass
class Acceptance(Share):
    """Of all requests of a run: accepted drafts, of those judged.

    prior: as how many drafts counts what was believed before anything was seen; fades, too.
    """

    prior: float = field(default_factory=lambda: _PRIOR_DRAFTS)

    def add(self, happened: float, tried: int, memory: float) -> None:
        super().add(happened, tried, memory)
        self.prior -= self.prior / memory

    def mean(self, hope: float) -> float:
        """The rate, taken for `hope` standard errors higher than was seen, and for more before much was seen.

        It starts at a half without hope. The first drafts are of few requests, which may be unlike all others.
        """
        rate = self.rate(0.5 + hope * _PRIOR_HOPE, max(self.prior, 1.0))
        return rate + hope * (rate * (1 - rate) / (self.tried + 1)) ** 0.5


def judged_drafts(record: StepRecord) -> tuple[Sequence[float], Sequence[int]]:
    """Accepted and judged drafts of every row."""
    if not any(record.num_draft_tokens):
        num_rows = len(record.request_ids)
        return [0.0] * num_rows, [0] * num_rows
    accepted, judged = zip(*(_judged(record, b) for b in range(len(record.request_ids))), strict=True)
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
