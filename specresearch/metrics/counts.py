"""Counts of drafting and acceptance, and the rates that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import mul
from typing import Any

from specresearch.metrics.shift import ShiftSums, TokenShift, pad, sum_positions
from specresearch.metrics.step import StepRecord

NUMBERS = (
    "num_target_forwards",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_generated_tokens",
    "num_unjudged_tokens",
)
LISTS = ("reached", "accepted", "expected")


@dataclass
class Counts:
    """Counts of one request, or sums over many. Lists are by position and start at depth 1.

    Attributes:
        reached: Drafts judged at this depth; everything above them was accepted.
        expected: How many of these were expected to be accepted; for a deterministic rule, how many
            were.
        shift: How far a lossy rule moved the output; None if that is not measured.
    """

    num_target_forwards: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_generated_tokens: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    shift: ShiftSums | None = None
    num_unjudged_tokens: int = 0

    def add(self, record: StepRecord, row: int) -> None:
        """Count one row of a step."""
        expected, shift = record.expected_acceptance, record.shift
        self.add_step(
            record.num_draft_tokens[row],
            record.draft_depth[row],
            record.num_accepted_tokens[row],
            record.num_new_tokens[row],
            expected=None if expected is None else expected[row],
            shift=None if shift is None else shift.rows[row],
            num_judged=record.num_judged_tokens[row],
            judged_depth=record.judged_depth[row],
        )

    def add_step(
        self,
        drafted: int,
        depth: int,
        accepted: int,
        new: int,
        expected: Sequence[float] | None = None,
        shift: TokenShift | None = None,
        num_judged: int | None = None,
        judged_depth: int | None = None,
    ) -> None:
        """Count one verify step; arguments are as in `StepRecord`.

        Without `num_judged` and `judged_depth`, the draft is a chain and the output did not end
        inside it.
        """
        num_judged = drafted if num_judged is None else num_judged
        judged_depth = min(accepted + 1, depth) if judged_depth is None else judged_depth
        self.num_target_forwards += 1
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.num_generated_tokens += new
        self.num_unjudged_tokens += drafted - num_judged
        pad(self.reached, depth, 0)
        pad(self.accepted, depth, 0)
        pad(self.expected, depth, 0.0)
        for i in range(judged_depth):
            self.reached[i] += 1
            self.accepted[i] += i < accepted
            self.expected[i] += i < accepted if expected is None else expected[i]
        if shift is not None:
            self.shift = self.shift or ShiftSums()
            self.shift.add(depth, shift)

    @staticmethod
    def total(parts: "Sequence[Counts]") -> "Counts":
        """Return the sum of several."""
        numbers = {name: sum(getattr(part, name) for part in parts) for name in NUMBERS}
        shifts = [part.shift for part in parts if part.shift is not None]
        shift = ShiftSums.total(shifts) if shifts else None
        return Counts(**numbers, **sum_positions(parts, LISTS), shift=shift)

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Counts":
        """Return the counts of a flat row.

        Raises:
            KeyError: A column other than `num_unjudged_tokens`, which defaults to 0, is missing.
        """
        columns = {"num_unjudged_tokens": 0, **row}
        counts = {field.name: columns[field.name] for field in fields(Counts)}
        if counts["shift"] is not None:
            counts["shift"] = ShiftSums(**counts["shift"])
        return Counts(**counts)

    @property
    def num_judged_tokens(self) -> int:
        return self.num_draft_tokens - self.num_unjudged_tokens

    @property
    def draft_acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_judged_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def tokens_per_target_forward(self) -> float:
        return _ratio(self.num_generated_tokens, self.num_target_forwards)

    @property
    def expected_acceptance(self) -> float:
        return _ratio(sum(self.expected), sum(self.reached))

    @property
    def expected_acceptance_at_position(self) -> list[float]:
        return _ratios(self.expected, self.reached)

    @property
    def acceptance_at_position(self) -> list[float]:
        return list(accumulate(self.conditional_acceptance_at_position, mul))

    @property
    def conditional_acceptance_at_position(self) -> list[float]:
        return _ratios(self.accepted, self.reached)

    @property
    def output_tv(self) -> float | None:
        if self.shift is None:
            return None
        return _ratio(sum(self.shift.total_variation), self.num_generated_tokens)

    @property
    def output_kl(self) -> float | None:
        if self.shift is None or any(self.shift.num_infinite):
            return None
        return _ratio(sum(self.shift.kl), self.num_generated_tokens)

    @property
    def num_infinite_kl(self) -> int | None:
        return None if self.shift is None else sum(self.shift.num_infinite)

    @property
    def refused_rate(self) -> float | None:
        if self.shift is None:
            return None
        return _ratio(sum(self.shift.refusal), self.num_accepted_tokens)

    @property
    def output_tv_at_position(self) -> list[float]:
        return _ratios(self.shift.total_variation, self.reached) if self.shift else []

    @property
    def output_kl_at_position(self) -> list[float | None]:
        if self.shift is None:
            return []
        means = _ratios(self.shift.kl, self.reached)
        pairs = zip(means, self.shift.num_infinite, strict=False)
        return [None if num_infinite else mean for mean, num_infinite in pairs]

    @property
    def refused_rate_at_position(self) -> list[float]:
        return _ratios(self.shift.refusal, self.accepted) if self.shift else []


def _ratio(part: int | float, whole: int) -> float:
    return part / whole if whole else 0.0


def _ratios(parts: Sequence[int | float], wholes: Sequence[int]) -> list[float]:
    """Return the ratio at each position that both lists have."""
    return list(map(_ratio, parts, wholes))
