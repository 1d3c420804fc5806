"""Running counts of drafting and acceptance, and the rates that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import mul
from typing import Any

from specresearch.metrics.shift import ShiftSums, TokenShift, add_up
from specresearch.metrics.step import StepRecord


@dataclass
class Counts:
    """Running counts of one request, or of many added up. Position lists start at depth 1. shift: None if it is not measured."""

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
        """Count one verify step; arguments as in `StepRecord`.

        reached[i]: drafts judged at depth i + 1, everything above accepted; expected[i]: how many of them were expected to be
        accepted, which for a deterministic rule is how many were. Without num_judged and judged_depth the output did not end
        inside the draft, and the draft is a chain.
        """
        self.num_target_forwards += 1
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.num_generated_tokens += new
        grow = depth - len(self.reached)
        if grow > 0:
            self.reached += [0] * grow
            self.accepted += [0] * grow
            self.expected += [0.0] * grow
        self.num_unjudged_tokens += 0 if num_judged is None else drafted - num_judged
        for i in range(min(accepted + 1, depth) if judged_depth is None else judged_depth):
            self.reached[i] += 1
            self.accepted[i] += i < accepted
            self.expected[i] += expected[i] if expected is not None else i < accepted
        if shift is not None:
            self.shift = self.shift or ShiftSums()
            self.shift.add(depth, shift)

    @staticmethod
    def total(parts: "Sequence[Counts]") -> "Counts":
        shifts = [part.shift for part in parts if part.shift is not None]
        return Counts(
            sum(part.num_target_forwards for part in parts),
            sum(part.num_drafts for part in parts),
            sum(part.num_draft_tokens for part in parts),
            sum(part.num_accepted_tokens for part in parts),
            sum(part.num_generated_tokens for part in parts),
            add_up([part.reached for part in parts]),
            add_up([part.accepted for part in parts]),
            add_up([part.expected for part in parts]),
            ShiftSums.total(shifts) if shifts else None,
            sum(part.num_unjudged_tokens for part in parts),
        )

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Counts":
        """Return the counts of a flat row. Raises KeyError for one that lacks some, `num_unjudged_tokens` (0) excepted."""
        told = {f.name: row[f.name] for f in fields(Counts) if f.name != "num_unjudged_tokens"}
        if told["shift"] is not None:
            told["shift"] = ShiftSums(**told["shift"])
        return Counts(**told, num_unjudged_tokens=row.get("num_unjudged_tokens", 0))

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
        return [_ratio(e, r) for e, r in zip(self.expected, self.reached, strict=True)]

    @property
    def acceptance_at_position(self) -> list[float]:
        return list(accumulate(self.conditional_acceptance_at_position, mul))

    @property
    def conditional_acceptance_at_position(self) -> list[float]:
        return [_ratio(a, r) for a, r in zip(self.accepted, self.reached, strict=True)]

    @property
    def output_tv(self) -> float | None:
        return (
            None
            if self.shift is None
            else _ratio(sum(self.shift.total_variation), self.num_generated_tokens)
        )

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
        return (
            None
            if self.shift is None
            else _ratio(sum(self.shift.refusal), self.num_accepted_tokens)
        )

    @property
    def output_tv_at_position(self) -> list[float]:
        sums = self.shift or ShiftSums()
        return [_ratio(tv, r) for tv, r in zip(sums.total_variation, self.reached, strict=False)]

    @property
    def output_kl_at_position(self) -> list[float | None]:
        sums = self.shift or ShiftSums()
        finite = zip(sums.kl, self.reached, sums.num_infinite, strict=False)
        return [None if num_infinite else _ratio(kl, r) for kl, r, num_infinite in finite]

    @property
    def refused_rate_at_position(self) -> list[float]:
        sums = self.shift or ShiftSums()
        return [_ratio(refusal, a) for refusal, a in zip(sums.refusal, self.accepted, strict=False)]


def _ratio(part: int | float, whole: int) -> float:
    return part / whole if whole else 0.0
