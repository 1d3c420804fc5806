"""When requests come: at random, in bursts, evenly, as others leave, or as a recorded trace says."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.data.traces import RequestTrace, TraceRow, read_trace


class Arrivals(ABC):
    """concurrency: None where requests come whatever happens to those before them; otherwise so many are in flight always."""

    concurrency: int | None = None

    @property
    def rows(self) -> tuple[TraceRow, ...] | None:
        """Where lengths are given along with times: the requests of the trace."""
        return None

    @abstractmethod
    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        """Seconds from the beginning, in order; the same seed gives the same times."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """`arrivals`: the name; and what tells one load from another."""


class Poisson(Arrivals):
    """Independent requests: the gaps between them are exponential. qps: requests per second on average."""

    def __init__(self, qps: float) -> None:
        self.qps = _check_rate(qps)

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return _generator(seed).exponential(1 / self.qps, num_requests).cumsum()

    def describe(self) -> dict[str, Any]:
        return {"arrivals": "poisson", "qps": self.qps}


class Gamma(Arrivals):
    """Gaps of a gamma distribution. cv: their standard deviation over their mean; 1 is Poisson, above 1 comes in bursts."""

    def __init__(self, qps: float, cv: float = 2.0) -> None:
        self.qps, self.cv = _check_rate(qps), cv
        if not cv > 0:
            raise ValueError(
                f"arrivals.cv={cv} must be above 0; arrivals=constant has no spread at all"
            )

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        shape = self.cv**-2
        return _generator(seed).gamma(shape, 1 / (shape * self.qps), num_requests).cumsum()

    def describe(self) -> dict[str, Any]:
        return {"arrivals": "gamma", "qps": self.qps, "cv": self.cv}


class Constant(Arrivals):
    """Evenly spaced requests."""

    def __init__(self, qps: float) -> None:
        self.qps = _check_rate(qps)

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return np.arange(num_requests) / self.qps

    def describe(self) -> dict[str, Any]:
        return {"arrivals": "constant", "qps": self.qps}


class ClosedLoop(Arrivals):
    """A request comes when another one leaves, so that `concurrency` of them are always in flight."""

    def __init__(self, concurrency: int) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError(f"arrivals.concurrency={concurrency} must be a whole number from 1")
        self.concurrency = concurrency

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return np.zeros(num_requests)

    def describe(self) -> dict[str, Any]:
        return {"arrivals": "closed_loop", "concurrency": self.concurrency}


class Replay(Arrivals):
    """The requests of a trace: their times, and the lengths of their prompts and answers.

    time_scale: seconds that a second of the trace takes here; 10 replays it ten times slower.
    start, duration: the stretch of the trace that is replayed, in its own seconds; None goes to its end.
    """

    def __init__(
        self, path: str, time_scale: float = 1.0, start: float = 0.0, duration: float | None = None
    ) -> None:
        if not time_scale > 0:
            raise ValueError(
                f"arrivals.time_scale={time_scale} must be above 0; 10 replays ten times slower"
            )
        if start < 0 or (duration is not None and not duration > 0):
            raise ValueError(
                f"arrivals.start={start}, duration={duration}: need start >= 0 and duration > 0 seconds"
            )
        self.trace: RequestTrace = read_trace(path)
        self.time_scale, self.start, self.duration = time_scale, start, duration
        end = np.inf if duration is None else start + duration
        self._rows = tuple(row for row in self.trace.rows if start <= row.time < end)
        if not self._rows:
            raise ValueError(
                f"{path} has no request between second {start:g} and second {end:g}; it lasts {self.trace.seconds:,.0f} "
                "seconds, so lower arrivals.start or raise arrivals.duration"
            )

    @property
    def rows(self) -> tuple[TraceRow, ...]:
        return self._rows

    def times(self, num_requests: int, seed: int) -> Float[np.ndarray, " n"]:
        return (
            np.array([row.time - self.start for row in self._rows[:num_requests]]) * self.time_scale
        )

    def describe(self) -> dict[str, Any]:
        seconds = (self._rows[-1].time - self._rows[0].time) * self.time_scale
        return {
            "arrivals": "replay",
            "qps": (len(self._rows) - 1) / seconds if seconds else None,
            "time_scale": self.time_scale,
            "trace": self.trace.format,
        }


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0x61727269])  # a stream of its own


def _check_rate(qps: float) -> float:
    if not 0 < qps < np.inf:
        raise ValueError(f"arrivals.qps={qps} must be above 0 requests per second")
    return float(qps)
