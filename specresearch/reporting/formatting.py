"""Numbers as a person reads them."""

import math
from collections.abc import Sequence

from specresearch.bench.estimate import Estimate
from specresearch.reporting.workload import Load

NOTHING = "-"


def figure(value: float | None, digits: int = 2) -> str:
    """Return a value such as `1,024.50`; None and NaN are unknown."""
    return NOTHING if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def interval(estimate: Estimate | None, digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    """Return a value with its interval, such as `1.52 (1.40 to 1.63)`."""
    if estimate is None:
        return NOTHING
    value = f"{estimate.value * scale:,.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return f"{value} (no interval)"
    low, high = estimate.low * scale, estimate.high * scale
    return f"{value} ({low:,.{digits}f} to {high:,.{digits}f})"


def inline(estimate: Estimate | None) -> str:
    """Return a value with its interval for parentheses, such as `1.52, 1.40 to 1.63`."""
    return interval(estimate).replace(" (", ", ").removesuffix(")")


def seconds(value: float | None) -> str:
    """Return a time such as `7.25 ms`, `312 ms` or `4.1 s`."""
    if value is None:
        return NOTHING
    milliseconds = value * 1e3
    if abs(milliseconds) < 999.5:
        return f"{milliseconds:.{_digits(milliseconds)}f} ms"
    return f"{value:,.{_digits(value)}f} s"


def seconds_with_interval(estimate: Estimate | None) -> str:
    """Return a time such as `7.25 ms (7.01 to 7.60)`, all in the unit of the value."""
    if estimate is None:
        return NOTHING
    scale, unit = (1e3, " ms") if abs(estimate.value) < 0.9995 else (1.0, " s")
    return interval(estimate, _digits(estimate.value * scale), scale, unit)


def time_scale(longest: float) -> tuple[float, str]:
    """Return the factor and the unit of an axis whose values reach `longest` seconds."""
    return (1e3, "ms") if longest < 1 else (1.0, "s")


def times(estimate: Estimate) -> str:
    """Return a speedup such as `1.52 times as fast (95% interval 1.40 to 1.63)`."""
    words = f"{estimate.value:.2f} times as fast"
    if estimate.low is None or estimate.high is None:
        return f"{words} (too little was measured for an interval)"
    return f"{words} (95% interval {estimate.low:.2f} to {estimate.high:.2f})"


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def limit_name(name: str) -> str:
    """Return `TTFT P99` for `ttft_p99`."""
    return name.upper().replace("_", " ")


def loads_listed(loads: Sequence[Load]) -> str:
    """Return loads such as `1, 4 and 8 requests at a time`."""
    if len(loads) == 1:
        return loads[0].label
    return f"{listed([load.amount_label for load in loads])} {loads[0].unit}"


def count(number: int, noun: str) -> str:
    """Return `1 request` or `2 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _digits(value: float) -> int:
    """Return the decimals that leave three significant digits."""
    return max(0, 3 - len(str(int(abs(value)))))
