"""The middle of a pass, which is what counts: one rule cuts off warm-up and tail."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.steps import PassSteps
from specresearch.rows import RequestRow

WARMUP_SHARE = 0.1
NUM_BLOCKS = 20
REQUESTS_PER_HALF_PERIOD = 2  # of the fastest cosine that measures a spread
MAX_SLOW = 5  # cosines: a queue remembers for longer than a request takes
RULE = (
    f"open arrivals: from {WARMUP_SHARE:.0%} of the time until the last arrival to the last "
    "arrival; requests that arrived in it count. closed loop of n: from the moment when n requests "
    "had finished to the moment when the last one was sent; requests that finished in it count. "
    "Rates count what happened in it: tokens delivered, requests finished"
)


@dataclass(frozen=True)
class LatencyLimits:
    """The latencies that a user accepts, in seconds: to the first token, and per token after it."""

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if not seconds > 0:
                raise ValueError(f"limits.{name}={seconds} must be above 0 seconds")

    def are_met(self, request: RequestRow) -> bool:
        return request.ttft <= self.ttft and request.tpot <= self.tpot


@dataclass(frozen=True)
class Window:
    """A stretch of one pass, in seconds since the pass began, and the requests that count.

    Attributes:
        blocks: A row for each of its equal parts: tokens delivered, requests finished, those of
            them that met the limits, and seconds. There are NUM_BLOCKS parts, or as many as
            requests to count if these are fewer, on every side alike.
    """

    begin: float
    end: float
    rows: tuple[RequestRow, ...]
    blocks: Float[np.ndarray, "blocks 4"]

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @staticmethod
    def of(
        row: PassRow,
        requests: Sequence[RequestRow],
        concurrency: int | None,
        limits: LatencyLimits,
        steps: PassSteps | None = None,
    ) -> "Window | None":
        """Return the window of a pass, or None if the pass is too short to have a middle.

        Args:
            requests: The finished requests of the pass.
            steps: The steps of the pass, which know the tokens of unfinished requests as well;
                without them only tokens of finished requests count.
        """
        end = row.last_arrival
        if concurrency is None:
            begin = WARMUP_SHARE * end
            counted = tuple(request for request in requests if begin <= request.arrival <= end)
        else:
            finishes = sorted(request.finish for request in requests)
            if len(finishes) < concurrency:
                return None
            begin = finishes[concurrency - 1]
            counted = tuple(request for request in requests if begin < request.finish <= end)
        if end <= begin:
            return None
        edges = np.linspace(begin, end, _num_blocks(row.num_requests, concurrency) + 1)
        if concurrency is not None:
            # The step that ended the warm-up is no part of the window.
            edges[0] = np.nextafter(begin, end)
            steps = steps and steps.since(begin)
        finished = [request.finish for request in requests]
        good = [request.finish for request in requests if limits.are_met(request)]
        columns = [
            _delivered(requests, steps, edges),
            np.histogram(finished, edges)[0],
            np.histogram(good, edges)[0],
            np.diff(edges),
        ]
        return Window(begin, end, counted, np.stack(columns, axis=1).astype(float))


def num_slow(windows: Sequence[Window]) -> int:
    """Return how many slow cosines measure the spread of these windows' blocks.

    See `statistics.SERIES_INTERVALS`. Requests share the machine and wait for one another, so what
    happens stays alike for about as long as one request takes.
    """
    times = [row.e2el for window in windows for row in window.rows]
    if not times:
        return 0
    return slow_within(min(window.seconds for window in windows), np.array(times))


def slow_within(seconds: float, times: Float[np.ndarray, " n"]) -> int:
    """Return how many slow cosines measure a spread over `seconds`.

    Args:
        times: The times that requests take.
    """
    half_period = REQUESTS_PER_HALF_PERIOD * float(np.percentile(times, 90))
    return int(min(seconds / half_period, MAX_SLOW)) if half_period else MAX_SLOW


def token_times(request: RequestRow) -> Float[np.ndarray, " n"]:
    """Return when each token was delivered, in seconds since the pass began."""
    return request.arrival + request.ttft + np.cumsum([0.0, *request.itl])


def _num_blocks(num_requests: int, concurrency: int | None) -> int:
    """Return fewer blocks for few requests, which are not that many observations."""
    warmup_and_tail = WARMUP_SHARE * num_requests if concurrency is None else 2 * concurrency
    return max(min(NUM_BLOCKS, int(num_requests - warmup_and_tail)), 1)


def _delivered(
    requests: Sequence[RequestRow], steps: PassSteps | None, edges: Float[np.ndarray, " e"]
) -> Float[np.ndarray, " blocks"]:
    """Return the tokens between the edges; a step delivers its tokens at its end."""
    if steps is not None:
        return np.histogram(steps.start + steps.seconds, edges, weights=steps.new)[0]
    times = [np.zeros(0), *map(token_times, requests)]
    return np.histogram(np.concatenate(times), edges)[0].astype(float)
