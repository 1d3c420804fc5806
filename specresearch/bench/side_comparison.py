"""A side that drafts compared with the baseline, and the average step of a side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specresearch.bench.estimate import Estimate
from specresearch.statistics import ratio_of

THROUGHPUT, LATENCY = "throughput", "latency"


@dataclass(frozen=True)
class MeanStepTimes:
    """An average step of one side.

    Attributes:
        parts: Seconds by part, prefill excluded.
        tokens: Tokens that a step yields, all running requests together.
    """

    parts: Mapping[str, float]
    tokens: float

    @staticmethod
    def of(sums: Mapping[str, float], num_steps: int, num_tokens: float) -> "MeanStepTimes | None":
        """Return the average of steps, from the sums of their seconds; None without steps."""
        if not num_steps:
            return None
        parts = {part: seconds / num_steps for part, seconds in sums.items()}
        return MeanStepTimes(parts, num_tokens / num_steps)

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return sum(self.parts.values())

    @property
    def model_seconds_per_token(self) -> float | None:
        """Return the seconds of drafting and of the target's passes per token."""
        return ratio_of(self.parts["propose"] + self.parts["verify"], self.tokens)


def ideal_speedup(side: MeanStepTimes | None, baseline: MeanStepTimes | None) -> float | None:
    """Return the speedup that the step times would allow if the host took no time."""
    if side is None or baseline is None or not baseline.tokens:
        return None
    per_token = side.model_seconds_per_token
    return baseline.parts["verify"] / baseline.tokens / per_token if per_token else None


@dataclass(frozen=True)
class ClassChange:
    """Time per output token of one class of a mixed workload, relative to the baseline's.

    Attributes:
        median: Ratio of the medians.
        slowest: Ratio of the 99th percentiles.
        has_signature: Whether the median improved while the slowest requests got worse; None if
            too few requests were measured to tell.
    """

    name: str
    median: Estimate | None
    slowest: Estimate | None
    has_signature: bool | None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ClassChange":
        """Return a change as it was written."""
        estimates = {name: Estimate.from_json(data[name]) for name in ("median", "slowest")}
        return ClassChange(**{**data, **estimates})


@dataclass(frozen=True)
class SideComparison:
    """One side that drafts, compared with the baseline on the same requests.

    Attributes:
        gain: How many times as fast it is; None if nothing could be compared.
        basis: What `gain` compares, THROUGHPUT or LATENCY.
        decode_speedup: The speedup of decoding alone, without prefill and waiting.
        ideal_speedup: The speedup that the step times would allow if the host took no time.
        classes: The classes of a mixed workload.
    """

    gain: Estimate | None
    basis: str = THROUGHPUT
    decode_speedup: Estimate | None = None
    ideal_speedup: float | None = None
    classes: tuple[ClassChange, ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "SideComparison":
        """Return a comparison as it was written."""
        return SideComparison(
            gain=Estimate.from_json(data["gain"]),
            basis=data["basis"],
            decode_speedup=Estimate.from_json(data["decode_speedup"]),
            ideal_speedup=data["ideal_speedup"],
            classes=tuple(ClassChange.from_json(change) for change in data["classes"]),
        )
