"""What a load run is to do, and what it is to refuse."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specresearch.loadtest.arrivals import Arrivals
from specresearch.loadtest.window import Limits

NUM_OPEN_REQUESTS = 64
WAVES, LEAST_WAVES, NUM_CLOSED_REQUESTS = (
    4,
    3,
    24,
)  # of a closed loop: times its concurrency, and at least so many


@dataclass(frozen=True)
class PassSettings:
    """Of passes with the model or without it.

    num_requests: of a pass; None: as the load suggests. max_running: requests decoded together. repeats: passes of every side.
    compare: fixed draft lengths, a side each. max_waiting, max_seconds: where a pass is given up.
    Raises ValueError for values that cannot be.
    """

    num_requests: int | None = None
    max_running: int = 32
    repeats: int = 1
    compare: Sequence[int] = ()
    limits: Limits = field(default_factory=lambda: Limits(1.0, 0.1))
    max_waiting: int = 256
    max_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests is not None:
            self.check_counts("num_requests")
        self.check_counts("max_running", "repeats", "max_waiting")
        if not self.max_seconds > 0:
            raise ValueError(f"max_seconds={self.max_seconds} must be above 0")
        for length in self.compare:
            if not isinstance(length, int) or isinstance(length, bool) or length < 1:
                raise ValueError(
                    f"compare={list(self.compare)} must hold draft lengths from 1; plain decoding is measured anyway"
                )
        if len(set(self.compare)) < len(self.compare):
            raise ValueError(f"compare={list(self.compare)} names a draft length twice; remove one")

    def check_counts(self, *names: str, least: int = 1) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value} must be a whole number from {least}")


@dataclass(frozen=True)
class LoadSettings(PassSettings):
    """num_requests: None: all of a trace, 64 of other arrivals, 4 times the concurrency (at least 24) of a closed loop.

    warmup: requests decoded first and not counted. length_spread: of answers without a trace, see `Workload`.
    reset: controllers forget before every pass what they learnt in those before. turn_seconds: of the passes of a repeat, which
    take turns so that all meet the same machine; None: pass after pass.
    """

    length_spread: float = 0.0
    warmup: int = 2
    reset: bool = True
    turn_seconds: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("warmup", least=0)
        if self.turn_seconds is not None and not self.turn_seconds > 0:
            raise ValueError(
                f"turn_seconds={self.turn_seconds} must be above 0; null runs pass after pass"
            )
        if not 0 <= self.length_spread < 1:
            raise ValueError(
                f"length_spread={self.length_spread} must be from 0, all answers alike, to below 1"
            )

    def count(self, arrivals: Arrivals) -> int:
        """Requests of a pass. Raises ValueError for a closed loop so short that nothing but warm-up and tail would be left."""
        if arrivals.concurrency is None:
            return self.num_requests or (
                len(arrivals.rows) if arrivals.rows is not None else NUM_OPEN_REQUESTS
            )
        least = LEAST_WAVES * arrivals.concurrency
        if self.num_requests is None:
            return max(WAVES * arrivals.concurrency, NUM_CLOSED_REQUESTS)
        if self.num_requests < least:
            raise ValueError(
                f"num_requests={self.num_requests} is too few for a closed loop of {arrivals.concurrency}: the first and the "
                f"last {arrivals.concurrency} are warm-up and tail; take at least {least}"
            )
        return self.num_requests
