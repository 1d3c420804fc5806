"""One figure: its value and spread, what was expected, and how it was measured."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specresearch.models.load_errors import first_line

MAX_REASON = 300  # characters
EXPLAINED = (ValueError, MemoryError, RuntimeError)  # whose messages say what happened


@dataclass(frozen=True)
class Expectation:
    """The value that a figure should reach, in the figure's unit."""

    bound: Literal["at least", "at most"]
    limit: float | int

    def is_met(self, value: float | int) -> bool:
        return value >= self.limit if self.bound == "at least" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.bound} {self.limit:g}"


def at_least(limit: float | int) -> Expectation:
    return Expectation("at least", limit)


def at_most(limit: float | int) -> Expectation:
    return Expectation("at most", limit)


@dataclass(frozen=True)
class Measurement:
    """A figure, or why there is none.

    Attributes:
        value: The median over repeats; None if nothing was measured.
        low, high: The extremes over repeats.
        how: How it was measured, in one phrase.
        reason: Why there is no value.
        part, case: What was measured.
    """

    name: str
    unit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    expectation: Expectation | None = None
    how: str = ""
    reason: str = ""
    part: str = ""
    case: str = ""

    @staticmethod
    def of(
        name: str,
        values: float | int | Sequence[float | int],
        unit: str,
        how: str,
        expectation: Expectation | None = None,
    ) -> "Measurement":
        """Return the median of one or several values; values that are not finite are a reason."""
        repeats = [values] if isinstance(values, (int, float)) else list(values)
        row = Measurement(name, unit, expectation=expectation, how=how)
        if not repeats or not np.isfinite(repeats).all():
            return replace(row, reason=f"{repeats or 'nothing'} was measured, which is no figure")
        return replace(
            row,
            value=float(statistics.median(repeats)),
            low=float(min(repeats)),
            high=float(max(repeats)),
        )

    @property
    def is_met(self) -> bool | None:
        """Return whether the expectation is met; None without one, or without a value."""
        if self.expectation is None or self.value is None:
            return None
        return self.expectation.is_met(self.value)


def reason_of(error: Exception) -> str:
    """Return in one sentence why something could not be measured."""
    reason = first_line(error)[:MAX_REASON]
    return reason if isinstance(error, EXPLAINED) else f"{type(error).__name__}: {reason}"
