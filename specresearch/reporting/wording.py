"""Numbers as a person reads them."""

from collections.abc import Sequence

from specresearch.reporting.comparisons import Load
from specresearch.reporting.estimates import Estimate

NOTHING = "-"


def figure(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def interval(estimate: Estimate | None, digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    """`1.52 (1.40 to 1.63)`."""
    if estimate is None:
        return NOTHING
    shown = f"{estimate.value * scale:,.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return f"{shown} (no interval)"
    return f"{shown} ({estimate.low * scale:,.{digits}f} to {estimate.high * scale:,.{digits}f})"


def inline(estimate: Estimate | None) -> str:
    """`1.52, 1.40 to 1.63`, for parentheses."""
    return interval(estimate).replace(" (", ", ").removesuffix(")")


def seconds(value: float | None) -> str:
    """`7.25 ms`, `312 ms`, `4.1 s`."""
    if value is None:
        return NOTHING
    milliseconds = value * 1e3
    if abs(milliseconds) < 999.5:
        return f"{milliseconds:.{_digits(milliseconds)}f} ms"
    return f"{value:,.{_digits(value)}f} s"


def seconds_with_interval(estimate: Estimate | None) -> str:
    """`7.25 ms (7.01 to 7.60)`, all in the unit of the value."""
    if estimate is None:
        return NOTHING
    scale, unit = (1e3, " ms") if abs(estimate.value) < 0.9995 else (1.0, " s")
    return interval(estimate, _digits(estimate.value * scale), scale, unit)


def seconds_inline(estimate: Estimate | None) -> str:
    """`7.25 ms, 7.01 to 7.60`, for parentheses."""
    return seconds_with_interval(estimate).replace(" (", ", ").removesuffix(")")


def times(estimate: Estimate) -> str:
    """`1.52 times as fast (95% interval 1.40 to 1.63)`."""
    shown = f"{estimate.value:.2f} times as fast"
    if estimate.low is None or estimate.high is None:
        return f"{shown} (too little was measured for an interval)"
    return f"{shown} (95% interval {estimate.low:.2f} to {estimate.high:.2f})"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def limit_name(name: str) -> str:
    """`TTFT P99` for `ttft_p99`."""
    metric, _, percent = name.partition("_p")
    return f"{metric.upper()} P{percent}"


def loads_listed(loads: Sequence[Load]) -> str:
    """`1, 4 and 8 requests at a time`."""
    if len(loads) == 1:
        return loads[0].label
    return f"{listed([load.amount_label for load in loads])} {loads[0].unit}"


def count(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _digits(value: float) -> int:
    """Three significant ones."""
    return max(0, 3 - len(str(int(abs(value)))))
