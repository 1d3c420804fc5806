"""The latencies that a user accepts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a user accepts.

    Attributes:
        ttft: Seconds to the first token; None for no limit.
        tpot: Seconds per output token; None for no limit.
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

    @staticmethod
    def of(
        ttft: float | None,
        tpot: float | None,
        percentile: int,
        worth: float,
        of_runs: Sequence[Mapping[str, float]],
    ) -> "Limits":
        """Return the user's limits or, without any, those that all load tests were started with."""
        if ttft is not None or tpot is not None or len(of_runs) != 1:
            return Limits(ttft, tpot, percentile, worth)
        (own,) = of_runs
        return Limits(own["ttft"], own["tpot"], percentile, worth, source="the load runs' own")

    def given(self) -> dict[str, float]:
        """Return the limits by the figure of a side that they hold for."""
        limits = {}
        for name, limit in (("ttft", self.ttft), ("tpot", self.tpot)):
            if limit is not None:
                limits[f"{name}_p{self.percentile}"] = limit
        return limits
