from collections.abc import Callable

import numpy as np
import pytest

from specresearch import CausalLM, SamplingParams
from specresearch.batch import Batch
from specresearch.clock import ManualClock
from specresearch.engine import Engine, RequestOutput
from specresearch.loadtest.loop import Feed, LoadLoop, Stops
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import Autoregressive
from specresearch.request import Request
from specresearch.rows import PassKey, StepLog

NEVER = Stops(max_waiting=1000, max_seconds=60.0)
Play = Callable[..., tuple[LoadLoop, list[RequestOutput]]]


class Ticking(Autoregressive):
    """Lets every step take 10 ms on a manual clock."""

    num_draft_tokens = 1  # of which it makes none

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        self.clock.advance(0.01)


@pytest.fixture
def play(target: CausalLM) -> Play:
    """Requests of one letter each, at most two of them running."""

    def run(
        feed: Feed, stops: Stops = NEVER, num_tokens: int = 4
    ) -> tuple[LoadLoop, list[RequestOutput]]:
        clock = ManualClock()
        engine = Engine(target, Ticking(clock), max_batch_size=2, clock=clock)
        sampling = SamplingParams(max_new_tokens=num_tokens)
        outputs: list[RequestOutput] = []
        log = StepLog(PassKey(0, 0, "baseline"), engine.clock.now())
        loop = LoadLoop(
            engine, feed, lambda n: Request([n % 9], sampling, str(n)), log, stops, outputs.append
        )
        loop.run()
        assert not engine.has_work
        assert not target.in_use
        return loop, outputs

    return run


def test_open_arrivals_are_submitted_when_they_are_due_and_none_is_lost(play: Play) -> None:
    times = np.array([0.0, 0.0, 0.02, 0.3])
    loop, outputs = play(Feed(times))
    assert sorted(output.id for output in outputs) == ["0", "1", "2", "3"]
    assert loop.stopped is None
    assert loop.last_arrival == 0.3
    begin = loop.log.begin
    arrivals = {output.id: output.record.arrival_time - begin for output in outputs}
    assert [arrivals[str(n)] for n in range(4)] == pytest.approx(times, abs=1e-6)
    assert outputs[-1].id == "3"
    assert begin + loop.wall >= outputs[-1].record.arrival_time + outputs[-1].record.e2el


def test_waiting_for_a_slot_counts_into_the_first_token(play: Play) -> None:
    _, outputs = play(Feed(np.zeros(6)), num_tokens=8)
    records = sorted((output.record for output in outputs), key=lambda record: record.ttft)
    assert records[0].queue_time < records[-1].queue_time <= records[-1].ttft
    assert records[-1].ttft > records[0].e2el


def test_a_closed_loop_keeps_its_number_in_flight(play: Play) -> None:
    loop, outputs = play(Feed(np.zeros(7), concurrency=2))
    assert len(outputs) == 7
    steps = loop.log.pop()
    running = steps["num_running"].to_pylist()
    assert max(running) == 2
    assert set(steps["num_waiting"].to_pylist()) == {0}
    assert running[: len(running) // 2] == [2] * (len(running) // 2)


def test_a_feed_gives_what_is_due_once() -> None:
    feed = Feed(np.array([0.5, 1.0, 2.0]))
    assert feed.next_time == 0.5
    assert feed.due(0.1, 0) == []
    assert feed.due(1.5, 0) == [(0, 0.5), (1, 1.0)]
    assert feed.due(1.6, 0) == []
    assert not feed.is_empty
    closed = Feed(np.zeros(3), concurrency=2)
    assert [number for number, _ in closed.due(0.0, 0)] == [0, 1]
    assert closed.due(0.1, 2) == []
    assert closed.due(0.2, 1) == [(2, 0.2)]
    assert closed.is_empty


def test_a_rate_that_cannot_be_served_stops_the_pass_with_what_it_has(play: Play) -> None:
    loop, outputs = play(
        Feed(np.linspace(0, 0.05, 200)), Stops(max_waiting=20, max_seconds=60.0), num_tokens=30
    )
    assert loop.stopped is not None
    assert "the queue grows without bound" in loop.stopped
    assert f"{loop.num_waiting} wait (max_waiting=20)" in loop.stopped
    assert len(outputs) < loop.feed.num_submitted


def test_a_pass_that_takes_too_long_is_stopped(play: Play) -> None:
    loop, outputs = play(Feed(np.array([0.0, 600.0])), Stops(max_waiting=20, max_seconds=0.1))
    assert len(outputs) <= 1
    assert loop.stopped is not None
    assert "out of time" in loop.stopped
    assert loop.wall < 2


def test_the_clock_is_paused_between_turns(target: CausalLM) -> None:
    """Two passes on one target take turns of a step each, with a break that neither may count."""
    sampling = SamplingParams(max_new_tokens=4)
    outputs: dict[str, list[RequestOutput]] = {"one": [], "other": []}
    loops, clocks = [], [ManualClock(), ManualClock()]
    for (name, answers), clock in zip(outputs.items(), clocks, strict=True):
        slots = range(2 * len(loops), 2 * len(loops) + 2)
        engine = Engine(target, max_batch_size=2, slots=slots, clock=clock)
        loops.append(
            LoadLoop(
                engine,
                Feed(np.zeros(4), concurrency=3),
                lambda n: Request([n % 9], sampling, str(n)),
                StepLog(PassKey(0, 0, name), clock.now()),
                NEVER,
                answers.append,
            )
        )
    while not all(loop.is_over for loop in loops):
        for loop in loops:
            loop.run(1e-9 if loop.is_over else 0.0)
            slots = {
                row.slot in loop.engine.scheduler.slots for row in loop.engine.scheduler.running
            }
            assert slots <= {True}
        for loop, clock in zip(loops, clocks, strict=True):
            if not loop.is_over:
                clock.advance(60.0)
    assert [loop.wall for loop in loops] == [0.0, 0.0]
    assert not target.in_use
    for loop, answers in zip(loops, outputs.values(), strict=True):
        assert sorted(output.id for output in answers) == ["0", "1", "2", "3"]
        assert (
            max(
                output.record.arrival_time - loop.log.begin + output.record.e2el
                for output in answers
            )
            <= loop.wall
        )
        assert max(loop.log.pop()["start"].to_pylist()) <= loop.wall
    texts = [{output.id: output.token_ids for output in answers} for answers in outputs.values()]
    assert texts[0] == texts[1]


def test_an_error_leaves_no_request_behind(target: CausalLM) -> None:
    engine = Engine(target, max_batch_size=2)

    def interrupt(output: RequestOutput) -> None:
        raise KeyboardInterrupt

    log = StepLog(PassKey(0, 0, "baseline"), engine.clock.now())
    sampling = SamplingParams(max_new_tokens=3)
    loop = LoadLoop(
        engine, Feed(np.zeros(5)), lambda n: Request([1], sampling, str(n)), log, NEVER, interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert not engine.has_work
    assert not target.in_use
