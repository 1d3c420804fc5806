"""How far a lossy rule moved the output, as it is recorded: for a row, for a step, and added up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass(frozen=True)
class TokenShift:
    """What a lossy rule did to the tokens that a row received in one step, an entry for each; see `metrics.DEFINITIONS`.

    kl: may be infinite. refusal: probability that rejection sampling would have refused the draft; 0 for the target's own token.
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
    """`TokenShift`s added up, by position of the draft from depth 1. kl: of those that are finite."""

    total_variation: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    num_infinite: list[int] = field(default_factory=list)
    refusal: list[float] = field(default_factory=list)

    def add(self, depth: int, shift: TokenShift) -> None:
        grow = depth - len(self.kl)
        for sums in (self.total_variation, self.kl, self.refusal):
            sums += [0.0] * grow
        self.num_infinite += [0] * grow
        for i, tv, kl, refusal in zip(
            range(depth), shift.total_variation, shift.kl, shift.refusal, strict=False
        ):
            self.total_variation[i] += tv
            self.refusal[i] += refusal
            if math.isinf(kl):
                self.num_infinite[i] += 1
            else:
                self.kl[i] += kl

    @staticmethod
    def total(parts: "Sequence[ShiftSums]") -> "ShiftSums":
        return ShiftSums(
            add_up([part.total_variation for part in parts]),
            add_up([part.kl for part in parts]),
            add_up([part.num_infinite for part in parts]),
            add_up([part.refusal for part in parts]),
        )


def add_up(lists: Sequence[list]) -> list:
    """Position by position; short lists end in zeros."""
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]
