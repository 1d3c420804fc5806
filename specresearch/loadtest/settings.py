"""The settings of a load test, and which of them are rejected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from specresearch.bench.memory_fit import AUTO
from specresearch.loadtest.arrivals import Arrivals, is_count
from specresearch.loadtest.loop import Feed, Stops
from specresearch.loadtest.window import LatencyLimits

NUM_OPEN_REQUESTS = 64
NUM_CLOSED_REQUESTS = 24
WAVES = 4  # requests of a closed loop, as a multiple of its concurrency
MIN_WAVES = 3

Settings = TypeVar("Settings", bound="PassSettings")


@dataclass(frozen=True)
class PassSettings:
    """What load tests and simulations share.

    Attributes:
        num_requests: Requests of a pass; None leaves the number to the load.
        repeats: Passes of every side.
        compare: Fixed draft lengths, each measured as a side of its own.
        max_waiting: Requests in the queue at which a pass is stopped.
        max_seconds: Seconds after which a pass is stopped.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_requests: int | None = None
    repeats: int = 1
    compare: Sequence[int] = ()
    limits: LatencyLimits = field(default_factory=lambda: LatencyLimits(1.0, 0.1))
    max_waiting: int = 256
    max_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests is not None:
            self.check_counts("num_requests")
        self.check_counts("repeats", "max_waiting")
        if not self.max_seconds > 0:
            raise ValueError(f"max_seconds={self.max_seconds} must be above 0")
        if not all(map(is_count, self.compare)):
            raise ValueError(
                f"compare={list(self.compare)} must hold draft lengths from 1; plain decoding is "
                "measured anyway"
            )
        if len(set(self.compare)) < len(self.compare):
            raise ValueError(f"compare={list(self.compare)} names a draft length twice; remove one")

    @classmethod
    def from_config(cls: type[Settings], cfg: Mapping[str, Any]) -> Settings:
        """Return the settings that a configuration holds, among other keys."""
        values = {field.name: cfg[field.name] for field in fields(cls)}
        values["compare"] = tuple(cfg["compare"])
        values["limits"] = LatencyLimits(**cfg["limits"])
        return cls(**values)

    def check_counts(self, *names: str, least: int = 1) -> None:
        """Raise ValueError for an attribute that is no whole number of at least `least`."""
        for name in names:
            value = getattr(self, name)
            if not is_count(value, least):
                raise ValueError(f"{name}={value} must be a whole number from {least}")

    @property
    def stops(self) -> Stops:
        return Stops(self.max_waiting, self.max_seconds)

    def pass_seed(self, repeat: int) -> int:
        """Return the seed of a repeat, which all sides share."""
        return (self.seed << 16) + repeat

    def feed(self, arrivals: Arrivals, num_requests: int, repeat: int) -> Feed:
        """Return the requests of a pass."""
        times = arrivals.times(num_requests, self.pass_seed(repeat))
        return Feed(times, arrivals.concurrency)


@dataclass(frozen=True)
class LoadSettings(PassSettings):
    """The settings of a load test.

    Attributes:
        max_running: Requests of each side that decode together; "auto" chooses what fits into free
            memory.
        length_spread: Spread of output lengths without a trace; see `LoadWorkload`.
        warmup: Requests decoded first and not counted.
        reset: Reset controllers before every pass.
        turn_seconds: The passes of a repeat take turns of so many seconds, so that all see the same
            machine; None runs one pass after the other.
    """

    max_running: int | str = 32
    length_spread: float = 0.0
    warmup: int = 2
    reset: bool = True
    turn_seconds: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("warmup", least=0)
        if self.max_running != AUTO:
            self.check_counts("max_running")
        if self.turn_seconds is not None and not self.turn_seconds > 0:
            raise ValueError(
                f"turn_seconds={self.turn_seconds} must be above 0; null runs pass after pass"
            )
        if not 0 <= self.length_spread < 1:
            raise ValueError(
                f"length_spread={self.length_spread} must be from 0, all outputs alike, to below 1"
            )

    def count(self, arrivals: Arrivals) -> int:
        """Return the requests of a pass.

        The default is all of a trace, 64 of other open arrivals, and 4 times the concurrency of a
        closed loop, but at least 24.

        Raises:
            ValueError: If a closed loop would have nothing between warm-up and tail.
        """
        concurrency = arrivals.concurrency
        if concurrency is None:
            default = NUM_OPEN_REQUESTS if arrivals.rows is None else len(arrivals.rows)
            return self.num_requests or default
        if self.num_requests is None:
            return max(WAVES * concurrency, NUM_CLOSED_REQUESTS)
        if self.num_requests < MIN_WAVES * concurrency:
            raise ValueError(
                f"num_requests={self.num_requests} is too few for a closed loop of {concurrency}: "
                f"the first and the last {concurrency} are warm-up and tail; take at least "
                f"{MIN_WAVES * concurrency}"
            )
        return self.num_requests
