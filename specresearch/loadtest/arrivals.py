"""When requests arrive: at random, in bursts, evenly, as others leave, or as in a trace."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.data.traces import RequestTrace, TraceRow, read_trace

_STREAM = 0x61727269  # keeps the draws apart from those of other generators of the same seed


def is_count(value: object, least: int = 1) -> bool:
    """Return whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Arrivals(ABC):
    """The arrival times of the requests of a pass.

    Attributes:
        name: The arrivals' name in results.
        concurrency: Requests in flight at any time in a closed loop; None if requests arrive no
            matter what happens to earlier ones.
        rows: The requests of the trace, if it gives their lengths as well.
    """

    name: str
    concurrency: int | None = None
    rows: tuple[TraceRow, ...] | None = None

    @abstractmethod
    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        """Return sorted seconds since the pass began; the same seed gives the same times."""

    def describe(self) -> dict[str, Any]:
        """Return the name under `arrivals`, and the settings that distinguish one load."""
        return {"arrivals": self.name, **vars(self)}


class _OpenArrivals(Arrivals):
    """Requests arrive at a rate. `qps` is the mean number per second."""

    def __init__(self, qps: float) -> None:
        if not 0 < qps < np.inf:
            raise ValueError(f"arrivals.qps={qps} must be above 0 requests per second")
        self.qps = float(qps)


class Poisson(_OpenArrivals):
    """Independent requests, with exponential gaps between them."""

    name = "poisson"

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return _generator(seed).exponential(1 / self.qps, num_requests).cumsum()


class Gamma(_OpenArrivals):
    """Gamma-distributed gaps.

    Args:
        cv: Standard deviation of the gaps over their mean; 1 is Poisson, above 1 is bursty.
    """

    name = "gamma"

    def __init__(self, qps: float, cv: float = 2.0) -> None:
        super().__init__(qps)
        if not cv > 0:
            raise ValueError(
                f"arrivals.cv={cv} must be above 0; arrivals=constant has no spread at all"
            )
        self.cv = cv

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        shape = self.cv**-2
        return _generator(seed).gamma(shape, 1 / (shape * self.qps), num_requests).cumsum()


class Constant(_OpenArrivals):
    """Evenly spaced requests."""

    name = "constant"

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return np.arange(num_requests) / self.qps


class ClosedLoop(Arrivals):
    """A request arrives when another one leaves, so that `concurrency` are always in flight."""

    name = "closed_loop"

    def __init__(self, concurrency: int) -> None:
        if not is_count(concurrency):
            raise ValueError(f"arrivals.concurrency={concurrency} must be a whole number from 1")
        self.concurrency = concurrency

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return np.zeros(num_requests)


class Replay(Arrivals):
    """The requests of a trace: their arrival times, and the lengths of prompts and outputs.

    Args:
        time_scale: Seconds that a second of the trace takes; 10 replays it ten times slower.
        start: Where the replayed part begins, in seconds of the trace.
        duration: Seconds of the trace to replay; None replays it to its end.
    """

    name = "replay"

    def __init__(
        self, path: str, time_scale: float = 1.0, start: float = 0.0, duration: float | None = None
    ) -> None:
        if not time_scale > 0:
            raise ValueError(
                f"arrivals.time_scale={time_scale} must be above 0; 10 replays ten times slower"
            )
        if start < 0 or (duration is not None and not duration > 0):
            raise ValueError(
                f"arrivals.start={start}, duration={duration}: need start >= 0 and duration > 0 "
                "seconds"
            )
        self.trace: RequestTrace = read_trace(path)
        self.time_scale = time_scale
        self.start = start
        end = np.inf if duration is None else start + duration
        self.rows = tuple(row for row in self.trace.rows if start <= row.time < end)
        if not self.rows:
            raise ValueError(
                f"{path} has no request between second {start:g} and second {end:g}; it lasts "
                f"{self.trace.seconds:,.0f} seconds, so lower arrivals.start or raise "
                "arrivals.duration"
            )
        self._times = np.array([row.time for row in self.rows])

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return (self._times[:num_requests] - self.start) * self.time_scale

    def describe(self) -> dict[str, Any]:
        seconds = float(self._times[-1] - self._times[0]) * self.time_scale
        return {
            "arrivals": self.name,
            "qps": (len(self._times) - 1) / seconds if seconds else None,
            "time_scale": self.time_scale,
            "trace": self.trace.format,
        }


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAM])
