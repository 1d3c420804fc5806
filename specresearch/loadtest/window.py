"""The middle of a pass, which is what counts: warm-up and tail are cut by one rule."""

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
MOST_SLOW = 5  # cosines: a queue remembers for longer than a request takes
RULE = (
    f"open arrivals: from {WARMUP_SHARE:.0%} of the time until the last arrival, to the last arrival; requests that arrived "
    "in it count. closed loop of n: from the moment when n requests had finished, to the moment when the last one was sent; "
    "requests that finished in it count. Rates count what happened in it: tokens delivered, requests finished"
)


@dataclass(frozen=True)
class Window:
    """A stretch of one pass, in seconds since it began, and the requests that count.

    blocks: for each of its equal parts: tokens delivered, requests finished, those of them that met the limits, seconds. There
    are NUM_BLOCKS, or as many as requests that a pass of this length is to count if these are fewer, on every side alike.
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
        limits: "Limits",
        steps: PassSteps | None = None,
    ) -> "Window | None":
        """requests, steps: those of this pass. None when it was too short to have a middle.

        Steps know of the tokens of requests that a stopped pass left unfinished; without steps, those of finished ones count.
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
        if concurrency is not None:  # the step that ended the warm-up is no part of the window
            edges[0] = np.nextafter(begin, end)
            steps = steps and steps.since(begin)
        finished = [request.finish for request in requests]
        met = [request.finish for request in requests if limits.met(request)]
        columns = [
            _delivered(requests, steps, edges),
            *(np.histogram(values, edges)[0] for values in (finished, met)),
        ]
        return Window(
            begin, end, counted, np.stack([*columns, np.diff(edges)], axis=1).astype(float)
        )


def num_slow(windows: Sequence[Window]) -> int:
    """Return how many slow cosines measure the spread of these windows' stretches: see `stats.SERIES_INTERVALS`.

    Requests share the machine and wait for one another, so that what happens is alike for about as long as one takes.
    """
    times = [row.e2el for window in windows for row in window.rows]
    if not times:
        return 0
    return slow_within(min(window.seconds for window in windows), np.array(times))


def slow_within(seconds: float, times: Float[np.ndarray, " n"]) -> int:
    """Return how many slow cosines measure a spread over `seconds`, given the times that requests take."""
    half_period = REQUESTS_PER_HALF_PERIOD * float(np.percentile(times, 90))
    return int(min(seconds / half_period, MOST_SLOW)) if half_period else MOST_SLOW


@dataclass(frozen=True)
class Limits:
    """The latencies that a user accepts, in seconds: to the first token, and per token after it."""

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise ValueError(f"limits.{name}={getattr(self, name)} must be above 0 seconds")

    def met(self, request: RequestRow) -> bool:
        return request.ttft <= self.ttft and request.tpot <= self.tpot


def _num_blocks(num_requests: int, concurrency: int | None) -> int:
    """Fewer where few requests count, so that their stretches are not taken for as many observations."""
    warmup_and_tail = WARMUP_SHARE * num_requests if concurrency is None else 2 * concurrency
    return max(min(NUM_BLOCKS, int(num_requests - warmup_and_tail)), 1)


def _delivered(
    requests: Sequence[RequestRow], steps: PassSteps | None, edges: Float[np.ndarray, " e"]
) -> Float[np.ndarray, " blocks"]:
    """Tokens between the edges; those of a step come at its end."""
    if steps is not None:
        return np.histogram(steps.start + steps.seconds, edges, weights=steps.new)[0]
    times = [np.zeros(0), *map(token_times, requests)]
    return np.histogram(np.concatenate(times), edges)[0].astype(float)


def token_times(request: RequestRow) -> Float[np.ndarray, " n"]:
    """When its tokens were delivered, in seconds since the pass began."""
    return request.arrival + request.ttft + np.cumsum([0.0, *request.itl])
