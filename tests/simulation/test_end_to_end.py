"""Predicted against measured figures of a real engine whose clock counts passes."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import NGRAM, SIDE, draft, draft_model, ngram, record, requests_of, target, unchecked

from specresearch import CausalLM, Engine, Request
from specresearch.controllers import Controller, Fixed
from specresearch.engine import SchedulerSettings
from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Poisson
from specresearch.loadtest.loop import Feed, Stops
from specresearch.metrics import RequestRecord
from specresearch.proposers import Proposer
from specresearch.recording.recording import Recording
from specresearch.rows import PassKey, RequestRow
from specresearch.simulation import Drafting, Fitted, Method, Replays, Simulation, Timing

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

NUM_REQUESTS, MAX_RUNNING = 12, 5


class Clock:
    """Seconds that only passes of the models and waiting take, and every look at it a little."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Give passes times that a manual clock tells.

    The target's take 10 ms, 0.3 ms per token up to 8 and 0.5 ms above, and 2 us per token of
    context; the draft's take 1 ms and 0.02 ms per token.
    """
    clock, forward = Clock(), CausalLM._forward
    models = target(), draft(0.05)

    def slow(self: CausalLM, slots: Sequence[int], token_ids: Any, *rest: Any, **more: Any) -> Any:
        tokens, context = token_ids.numel(), sum(self.lengths[slot] for slot in slots)
        if self is models[0]:
            clock.now += 0.01 + 3e-4 * tokens + 2e-4 * max(tokens - 8, 0) + 2e-6 * context
        else:
            clock.now += 1e-3 + 2e-5 * tokens
        return forward(self, slots, token_ids, *rest, **more)

    monkeypatch.setattr(CausalLM, "_forward", slow)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    with unchecked():
        yield clock


def recording_of(folder: Path, name: str) -> Recording:
    """One request at a time, and as many as may run: what lies between is predicted."""
    requests = requests_of(NUM_REQUESTS)
    for batch_size in (1, MAX_RUNNING):
        proposer, config = (
            (ngram(), {"proposer": NGRAM}) if name == "ngram" else (draft_model(8), None)
        )
        record(folder / str(batch_size), proposer, requests, batch_size=batch_size, config=config)
    return Recording(folder / str(MAX_RUNNING))


def measure(
    clock: Clock,
    proposer: Proposer,
    controller: Controller,
    requests: Sequence[Request],
    arrivals: Arrivals,
) -> list[RequestRecord]:
    engine = Engine(target(), proposer, None, controller, max_batch_size=MAX_RUNNING)
    feed, begin, done = Feed(arrivals.times(len(requests), 0), arrivals.concurrency), clock.now, []
    while len(done) < len(requests):
        for number, moment in feed.due(clock() - begin, feed.num_submitted - len(done)):
            engine.submit(requests[number], begin + moment)
        if engine.has_work:
            engine.step()
            done += [output.record for output in engine.pop_finished()]
        else:
            clock.sleep(max(feed.next_time - (clock.now - begin), 1e-6))
    return done


def predict(
    drafting: Drafting, timing: Timing, length: int, arrivals: Arrivals
) -> list[RequestRow]:
    method = Method(Fixed(length), drafting.kind, 8)
    simulation = Simulation(timing, method, SchedulerSettings(), MAX_RUNNING, 56)
    feed = Feed(arrivals.times(NUM_REQUESTS, 0), arrivals.concurrency)
    return simulation.run(
        PassKey(0, 0, SIDE), feed, Replays(drafting, 56).request, Stops(10**6, 1e9)
    ).requests


@pytest.mark.parametrize("name", ["ngram", "draft_model"])
def test_what_is_predicted_is_what_is_measured(clock: Clock, tmp_path: Path, name: str) -> None:
    recording = recording_of(tmp_path, name)
    drafting = Drafting(recording, SIDE, "rejection", 8)
    timing = Fitted(recordings=[str(tmp_path / "1")])
    timing.bind(recording)
    errors = []
    for arrivals, length in ((ClosedLoop(3), 0), (ClosedLoop(3), 3), (Poisson(12.0), 2)):
        proposer = ngram() if name == "ngram" else draft_model(8)
        measured = measure(clock, proposer, Fixed(length), requests_of(NUM_REQUESTS), arrivals)
        predicted, otherwise = (
            predict(drafting, timing, n, arrivals) for n in (length, 8 - length)
        )
        num_steps = [
            sum(row.counts.num_target_forwards for row in rows) for rows in (measured, predicted)
        ]
        assert num_steps[1] == pytest.approx(num_steps[0], rel=0.02)
        for figure, within in (("e2el", 0.1), ("tpot", 0.1), ("ttft", 0.25)):
            for percent in (50, 99):
                own, guess, other = (
                    np.percentile([getattr(row, figure) for row in rows], percent)
                    for rows in (measured, predicted, otherwise)
                )
                assert guess == pytest.approx(own, rel=within), (
                    arrivals.describe(),
                    length,
                    figure,
                    percent,
                )
                errors.append(abs(other / own - 1))
    assert max(errors) > 0.3  # other settings do differ
