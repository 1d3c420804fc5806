"""The latencies and the speedup that a user asks for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Requirements:
    """What a user asks for.

    Attributes:
        ttft: Most seconds to the first token; None for no limit.
        tpot: Most seconds per output token; None for no limit.
        percentile: Of requests that must keep the limits.
        worth: The least speedup worth having.
        source: Where the limits come from, if not from the user directly.
    """

    ttft: float | None = None
    tpot: float | None = None
    percentile: int = 99
    worth: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "worth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name}={value} must be above 0")

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits by the figure of a side that they hold for, such as `ttft_p99`."""
        limits = {}
        for name, limit in (("ttft", self.ttft), ("tpot", self.tpot)):
            if limit is not None:
                limits[f"{name}_p{self.percentile}"] = limit
        return limits

    def or_limits_of(self, load_tests: Sequence[Mapping[str, float]]) -> "Requirements":
        """Return these or, without any limit, those that all load tests were started with."""
        if self.limits or len(load_tests) != 1:
            return self
        return Requirements(
            ttft=load_tests[0]["ttft"],
            tpot=load_tests[0]["tpot"],
            percentile=self.percentile,
            worth=self.worth,
            source="as set for the load runs",
        )
