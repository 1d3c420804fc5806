"""How far a lossy rule moved the output: per row, per step, and summed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class TokenShift:
    """What a lossy rule did to each token that a row received in one step.

    The definitions are in `metrics.DEFINITIONS`.

    Attributes:
        kl: May be infinite.
        refusal: Probability that rejection sampling would have rejected the draft; 0 for the
            target's own token.
    """

    total_variation: tuple[float, ...]
    kl: tuple[float, ...]
    refusal: tuple[float, ...]


@dataclass(frozen=True)
class StepShift:
    """What a lossy rule did to the tokens of every row in one step."""

    rows: tuple[TokenShift, ...]


@dataclass
class ShiftSums:
    """Sums of `TokenShift`s by position of the draft; lists start at depth 1.

    Attributes:
        kl: Sums of the finite values.
        num_infinite: How many were infinite.
    """

    total_variation: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    num_infinite: list[int] = field(default_factory=list)
    refusal: list[float] = field(default_factory=list)

    def add(self, depth: int, shift: TokenShift) -> None:
        """Add the tokens of one row at a step that drafted to `depth`."""
        for sums in (self.total_variation, self.kl, self.refusal):
            pad(sums, depth, 0.0)
        pad(self.num_infinite, depth, 0)
        for i, kl in enumerate(shift.kl[:depth]):
            self.total_variation[i] += shift.total_variation[i]
            self.refusal[i] += shift.refusal[i]
            self.num_infinite[i] += math.isinf(kl)
            self.kl[i] += 0.0 if math.isinf(kl) else kl

    @staticmethod
    def total(parts: "Sequence[ShiftSums]") -> "ShiftSums":
        """Return the sum of several."""
        return ShiftSums(
            **sum_positions(parts, ("total_variation", "kl", "num_infinite", "refusal"))
        )


def pad(values: list, length: int, value: int | float) -> None:
    """Extend a list to at least this length."""
    values.extend([value] * (length - len(values)))


def sum_positions(parts: Sequence[object], names: Sequence[str]) -> dict[str, Any]:
    """Return by name the parts' lists, added position by position; short lists end in zeros."""
    sums = {}
    for name in names:
        columns = zip_longest(*(getattr(part, name) for part in parts), fillvalue=0)
        sums[name] = list(map(sum, columns))
    return sums
