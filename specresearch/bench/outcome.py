"""Whether a method is faster than plain decoding, by its interval, and how that is said."""

from enum import Enum

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import LATENCY, THROUGHPUT

COMPARED = {THROUGHPUT: "throughput", LATENCY: "speed per request"}
EXPLANATION = (
    "Speedup: above 1 is faster than plain decoding. Cannot tell: the 95% interval contains 1, or "
    "too little was measured for one."
)


class Outcome(Enum):
    """Whether a setting is faster at one load."""

    FASTER, SLOWER, UNCLEAR = "faster", "slower", "cannot tell"

    @staticmethod
    def of(gain: Estimate | None, worth: float = 1.0) -> "Outcome":
        """Judge a speedup by its whole interval; without one it cannot be told.

        Args:
            worth: The speedup that is worth having.
        """
        if gain is not None and gain.is_above(worth):
            return Outcome.FASTER
        if gain is not None and gain.is_below(worth):
            return Outcome.SLOWER
        return Outcome.UNCLEAR


def describe_gain(
    gain: Estimate, measure: str = "speed", units: str = "prompts", *, has_drafts: bool = True
) -> str:
    """Return the verdict in words, such as "1.34x the speed of plain decoding (95% interval ..)".

    Args:
        measure: What is compared.
        units: What there were too few of, if there is no interval.
        has_drafts: False if nothing was drafted, so that both sides decoded plainly.
    """
    factor = f"{gain.value:.2f}x the {measure}"
    if not gain.has_interval:
        return f"{factor} of plain decoding, too few {units} for an interval: measure more"
    interval = f"95% interval {describe_interval(gain)}"
    if not has_drafts:
        return f"nothing was drafted, so both sides decoded plainly ({factor}, {interval})"
    outcome = Outcome.of(gain)
    if outcome is Outcome.UNCLEAR:
        return f"no measurable difference from plain decoding ({factor}, {interval})"
    slower = ", SLOWER" if outcome is Outcome.SLOWER else ""
    return f"{factor} of plain decoding{slower} ({interval})"


def describe_interval(estimate: Estimate | None, separator: str = " to ") -> str:
    """Return both ends of an interval, or "-" if there is none.

    They have a third decimal where two would round an end to 1.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    ends = (estimate.low, estimate.high)
    digits = 3 if any(f"{end:.2f}" == "1.00" for end in ends) else 2
    return separator.join(f"{end:.{digits}f}" for end in ends)
