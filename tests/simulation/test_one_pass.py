"""A simulated pass against closed forms, queueing theory and the engine itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from recorded import (
    NGRAM,
    SIDE,
    decoded,
    draft_model,
    ngram,
    record,
    requests_of,
    target,
    unchecked,
)

from specresearch import Engine, Request, SamplingParams
from specresearch.batch import Batch
from specresearch.controllers import (
    AcceptanceGate,
    BatchSizeCutoff,
    Confidence,
    Controller,
    Fixed,
    Goodput,
)
from specresearch.data.traces import TraceRow
from specresearch.engine import SchedulerSettings, ShortestPrompt
from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Constant, Poisson
from specresearch.loadtest.loop import Feed, Stops
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind
from specresearch.rows import PassKey
from specresearch.simulation import Drafting, Linear, Method, Replays, Simulation, Timing
from specresearch.simulation.acceptance import AcceptanceReplay, Chains, run_lengths
from specresearch.simulation.one_pass import SimulatedPass
from specresearch.simulation.positions import Estimates
from specresearch.simulation.replays import ReplayedOutput, ReplayedRequest, replayed_sampling
from specresearch.simulation.timing import Work

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

NO_STOPS = Stops(10**9, 1e12)
BASELINE = Method(Fixed(0))
SCORED = DraftKind(sampled=True, scored=True)


def coins(rate: float, num: int, seed: int = 0) -> Chains:
    """Drafts that are accepted independently at a rate."""
    return Chains(run_lengths(np.random.default_rng(seed).random(num) < rate))


def request_of(
    number: int,
    num_tokens: int,
    replay: AcceptanceReplay | None = None,
    num_prompt: int = 1,
    **estimates: Sequence[float],
) -> ReplayedRequest:
    replay = replay or coins(0.0, num_tokens)
    return ReplayedRequest(
        [0] * num_prompt,
        replayed_sampling(num_tokens),
        str(number),
        output=ReplayedOutput(replay, num_tokens, Estimates(**estimates)),
        num_tokens=num_tokens,
    )


def simulate(
    requests: Sequence[ReplayedRequest],
    timing: Timing,
    arrivals: Arrivals,
    method: Method = BASELINE,
    *,
    max_running: int = 4,
    scheduling: SchedulerSettings | None = None,
    stops: Stops = NO_STOPS,
    max_len: int = 2000,
) -> SimulatedPass:
    simulation = Simulation(timing, method, scheduling or SchedulerSettings(), max_running, max_len)
    feed = Feed(arrivals.times(len(requests), 0), arrivals.concurrency)
    return simulation.run(PassKey(0, 0, "method"), feed, requests.__getitem__, stops)


def test_plain_decoding_takes_what_the_closed_form_says() -> None:
    timing = Linear(0.01, verify_token=1e-3, prefill=0.5e-3, prefill_token=1e-4, overhead=2e-3)
    requests = [request_of(i, 5, num_prompt=11) for i in range(8)]
    made = simulate(requests, timing, ClosedLoop(4))
    step, prefill = 0.01 + 4e-3 + 2e-3, 0.5e-3 + 4 * 10 * 1e-4
    assert made.row.wall == pytest.approx(2 * (prefill + 5 * step))
    for row in made.requests:
        assert row.ttft == pytest.approx(prefill + step)
        assert row.tpot == pytest.approx(step)
        assert row.itl == pytest.approx([step] * 4)
        assert row.prefill_time == pytest.approx(prefill)
        assert (
            row.counts.num_target_forwards,
            row.counts.num_generated_tokens,
            row.queue_time,
        ) == (5, 5, 0)


def test_speculation_takes_what_the_closed_form_says() -> None:
    always = coins(1.0, 12)
    timing = Linear(0.01, verify_token=1e-3, draft=2e-3, draft_token=1e-4)
    made = simulate([request_of(0, 12, always)], timing, ClosedLoop(1), Method(Fixed(3), SCORED, 5))
    step = 0.01 + 4e-3 + 3 * 2e-3 + 3e-4
    assert made.row.wall == pytest.approx(3 * step)
    assert made.requests[0].counts.num_accepted_tokens == 9
    assert made.requests[0].itl == pytest.approx([0, 0, 0, step, 0, 0, 0, step, 0, 0, 0])


def test_context_and_longest_row_count() -> None:
    timing = Linear(0.0, verify_context=1.0)
    made = simulate([request_of(0, 3, num_prompt=6)], timing, ClosedLoop(1))
    assert made.row.wall == pytest.approx(5 + 6 + 7)


def waiting(arrivals: Arrivals, num: int, service: float) -> float:
    with unchecked():
        made = simulate(
            [request_of(i, 1) for i in range(num)],
            Linear(service),
            arrivals,
            max_running=1,
            max_len=8,
        )
    return float(np.mean([row.queue_time for row in made.requests]))


def test_queueing_is_that_of_theory() -> None:
    """M/D/1: the mean wait is rho s / (2 (1 - rho)). Evenly spaced requests do not wait."""
    service, rho = 1.0, 0.6
    expected = rho * service / (2 * (1 - rho))
    assert waiting(Poisson(rho / service), 8000, service) == pytest.approx(expected, rel=0.1)
    assert waiting(Constant(rho / service), 100, service) == pytest.approx(0.0, abs=1e-9)


@dataclass(frozen=True)
class Watched(Linear):
    """Takes a second a step and remembers what each had to do."""

    verify: float = 1.0
    works: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        pass  # `works` is no number to be checked

    def verify_seconds(self, work: Work) -> float:
        self.works.append(work)
        return super().verify_seconds(work)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_recorded_run_is_repeated_step_by_step(tmp_path: Path, batch_size: int) -> None:
    steps: list[StepRecord] = []
    requests = requests_of(5)
    recording = record(
        tmp_path, ngram(), requests, batch_size=batch_size, config={"proposer": NGRAM}
    )
    list(
        Engine(
            target(),
            ngram(),
            max_batch_size=batch_size,
            observers=[lambda step: steps.append(step.record)],
        ).generate(requests)
    )
    drafting = Drafting(recording, SIDE, "rejection", 8)
    replays = Replays(drafting, 56)
    method = Method(Fixed(), drafting.kind, 8)
    planned = [replays.request(number) for number in range(5)]
    machine = Watched()
    made = simulate(planned, machine, ClosedLoop(5), method, max_running=batch_size, max_len=56)
    recorded = recording.steps[recording.steps["side"] == SIDE]
    for name in (
        "num_rows",
        "num_drafts",
        "longest",
        "num_nodes",
        "context",
        "max_context",
        "attended",
    ):
        assert [getattr(work, name) for work in machine.works if work.num_rows] == recorded[
            name
        ].tolist()
    table = made.log.pop()
    for name in ("num_draft_tokens", "num_accepted_tokens", "num_new_tokens", "context"):
        assert [tuple(row) for row in table[name].to_pylist()] == [
            getattr(step, name) for step in steps
        ]
    assert table["num_prefill_tokens"].to_pylist() == [step.num_prefill_tokens for step in steps]
    assert table["num_nodes"].to_pylist() == [step.num_nodes for step in steps]
    assert made.row.wall == pytest.approx(len(steps))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_output_that_a_token_ends_is_drafted_on_as_in_the_engine(
    tmp_path: Path, batch_size: int
) -> None:
    """The engine cannot know that the end is near; drafts behind it are made and not judged."""
    whole = record(tmp_path / "whole", draft_model(6), requests_of(5))
    requests = []
    for request, recorded in zip(requests_of(5), whole.requests(SIDE), strict=True):
        end = int(recorded.token_ids[10])
        sampling = replace(request.sampling, stop_token_ids=(end,))
        requests.append(replace(request, sampling=sampling))
    recording = record(tmp_path, draft_model(6), requests, batch_size=batch_size)
    reasons = [request.finish_reason for request in recording.requests(SIDE)]
    assert set(reasons) == {"stop"}
    drafting = Drafting(recording, SIDE, "rejection", 6)
    replays = Replays(drafting, 56)
    planned = [replays.request(number) for number in range(5)]
    method = Method(Fixed(), drafting.kind, 6, drafting.prefills_lazily)
    made = simulate(planned, Linear(1.0), ClosedLoop(5), method, max_running=batch_size, max_len=56)
    actual = decoded(draft_model(6), requests, batch_size=batch_size)
    counts = {row.id.removeprefix("0:"): row.counts for row in made.requests}
    assert {id: c.num_draft_tokens for id, c in counts.items()} == {
        id: c.num_draft_tokens for id, c in actual.items()
    }
    assert {id: c.num_accepted_tokens for id, c in counts.items()} == {
        id: c.num_accepted_tokens for id, c in actual.items()
    }
    assert [row.finish_reason for row in made.requests] == reasons


def test_a_controller_that_cuts_drafts_saves_verification_and_not_drafting() -> None:
    scores = [0.1] * 12  # so that only the first draft of each step is verified
    request = request_of(0, 12, coins(1.0, 12), scores=scores)
    timing = Linear(0.01, verify_token=1e-3, draft=2e-3)
    made = simulate([request], timing, ClosedLoop(1), Method(Confidence(0.4), SCORED, 3))
    num_steps = made.requests[0].counts.num_target_forwards
    assert num_steps == 6
    table = made.log.pop()
    assert table["propose"].to_pylist() == pytest.approx([6e-3] * 5 + [2e-3])
    assert table["verify"].to_pylist() == pytest.approx([0.012] * 6)


def test_drafting_takes_no_time_in_steps_that_ask_for_no_drafts() -> None:
    class Search(Linear):
        """Takes a second whenever it is asked for drafts."""

        def propose_seconds(self, work: Work) -> float:
            return 1.0

    requests = [request_of(0, 4)]
    asked = simulate(requests, Search(1.0), ClosedLoop(1), Method(Fixed(2), DraftKind(), 2))
    assert asked.row.wall == 4 + 3  # the last step has no room for a draft
    idle = simulate(requests, Search(1.0), ClosedLoop(1), Method(Fixed(0), DraftKind(), 2))
    assert idle.row.wall == 4


class OnAndOff(Controller):
    """Drafts three in steps 3 to 5 and from 24 on, nothing in the others."""

    def __init__(self) -> None:
        self.num_steps = 0

    def budget(self, batch: Batch) -> list[int | None]:
        return [3 if self.num_steps in (3, 4, 5) or self.num_steps >= 24 else 0] * len(batch)

    def observe(self, record: StepRecord) -> None:
        self.num_steps += 1


def test_a_draft_lm_prefills_lazily_as_it_does_in_the_engine(tmp_path: Path) -> None:
    """It prefills prompts on the first draft, and what it missed; under another controller here."""
    steps: list[StepRecord] = []
    requests = [
        Request(
            tuple(range(1, 1 + num)), SamplingParams(max_new_tokens=34, ignore_eos=True), str(num)
        )
        for num in (20, 6, 18)
    ]
    recording = record(tmp_path, draft_model(4), requests, batch_size=2)
    assert recording.steps["num_lazy_prefill_tokens"].to_numpy().max() == 19
    engine = Engine(
        target(),
        draft_model(4),
        controller=OnAndOff(),
        max_batch_size=2,
        observers=[lambda step: steps.append(step.record)],
    )
    list(engine.generate(requests))
    drafting = Drafting(recording, SIDE, "rejection", 4)
    assert drafting.prefills_lazily
    replays, machine = Replays(drafting, 56), Watched()
    method = Method(OnAndOff(), drafting.kind, 4, drafting.prefills_lazily)
    planned = [replays.request(number) for number in range(3)]
    simulate(planned, machine, ClosedLoop(3), method, max_running=2, max_len=56)
    told = [work.num_lazy_prefill_tokens for work in machine.works if work.num_rows]
    assert told == [step.num_lazy_prefill_tokens for step in steps]
    assert sum(num > 0 for num in told) == 3


def test_the_scheduler_is_the_real_one() -> None:
    requests = [request_of(i, 6, num_prompt=4 + 8 * (i % 3)) for i in range(9)]
    settings = SchedulerSettings(
        ShortestPrompt(ageing=1e-3), max_step_tokens=10, max_cache_tokens=30
    )
    made = simulate(
        requests, Linear(1.0, prefill_token=0.1), ClosedLoop(9), max_running=4, scheduling=settings
    )
    assert len(made.requests) == 9
    assert sum(row.num_preemptions for row in made.requests) > 0
    assert all(row.counts.num_generated_tokens == 6 for row in made.requests)
    first = [
        row.num_prompt_tokens for row in sorted(made.requests, key=lambda row: row.queue_time)[:3]
    ]
    assert first == [4, 4, 4]
    table = made.log.pop()
    assert len(table) < made.row.wall  # there were steps of prefill alone


def test_an_overloaded_queue_is_given_up_with_what_there_is() -> None:
    made = simulate(
        [request_of(i, 2) for i in range(200)], Linear(1.0), Constant(10.0), stops=Stops(20, 1e9)
    )
    assert made.row.stopped is not None
    assert made.row.stopped.startswith("the queue grows without bound")
    assert made.row.num_finished == len(made.requests) > 0
    late = simulate(
        [request_of(i, 2) for i in range(200)], Linear(1.0), Constant(10.0), stops=Stops(1000, 5.0)
    )
    assert late.row.stopped is not None
    assert late.row.stopped.startswith("out of time")


def throughput(controller: Controller, rate: float, most: int, timing: Timing) -> float:
    with unchecked():
        requests = [request_of(i, 150, coins(rate, 150, seed=i)) for i in range(12)]
        made = simulate(requests, timing, ClosedLoop(4), Method(controller, SCORED, most))
    return 12 * 150 / made.row.wall


@pytest.mark.parametrize(("rate", "draft"), [(0.85, 0.2e-3), (0.3, 4e-3)])
def test_a_controller_is_driven_by_simulated_times(rate: float, draft: float) -> None:
    """Goodput comes close to the best fixed length, which is 0 in one of the cases."""
    timing = Linear(0.01, verify_token=0.3e-3, draft=draft, overhead=1e-3)
    fixed = {k: throughput(Fixed(k), rate, 6, timing) for k in (0, 1, 2, 4, 6)}
    best = max(fixed, key=lambda k: fixed[k])
    assert (best == 0) == (rate < 0.5)
    assert throughput(Goodput(max_draft_tokens=6), rate, 6, timing) > 0.93 * fixed[best]


def test_controllers_of_every_kind_steer_a_simulation() -> None:
    cutoff = simulate(
        [request_of(i, 20, coins(1.0, 20)) for i in range(4)],
        Linear(1.0),
        ClosedLoop(4),
        Method(BatchSizeCutoff(3), SCORED, 4),
    )
    assert all(row.counts.num_draft_tokens == 0 for row in cutoff.requests)
    gate = AcceptanceGate(window=2, probe_every=100)
    shut = simulate(
        [request_of(0, 40, coins(0.0, 40))], Linear(1.0), ClosedLoop(1), Method(gate, SCORED, 4)
    )
    assert shut.requests[0].counts.num_drafts == 2
    scores = [0.9, 0.1, 0.9, 0.9] * 5
    unsure = request_of(0, 20, coins(1.0, 20), scores=scores)
    cut = simulate([unsure], Linear(1.0), ClosedLoop(1), Method(Confidence(0.4), SCORED, 4))
    assert cut.requests[0].counts.num_draft_tokens < 4 * cut.requests[0].counts.num_drafts
    with pytest.raises(ValueError, match="Confidence reads the drafter's scores"):
        simulate(
            [request_of(0, 20)], Linear(1.0), ClosedLoop(1), Method(Confidence(0.4), SCORED, 4)
        )
    own = replace(request_of(0, 20, coins(1.0, 20)), num_draft_tokens=1)
    one = simulate([own], Linear(1.0), ClosedLoop(1), Method(Fixed(), SCORED, 4))
    assert one.requests[0].counts.num_draft_tokens == one.requests[0].counts.num_drafts == 10


def test_rounds_are_drawn_anew_and_share_ids(tmp_path: Path) -> None:
    recording = record(tmp_path, draft_model(4), requests_of(3, 1.0))
    replays = Replays(Drafting(recording, SIDE, "rejection", 4), 56)
    assert [replays.request(n).recorded_id for n in range(6)] == ["0:r0", "0:r1", "0:r2"] * 2
    assert len({replays.request(n).id for n in range(6)}) == 6
    made = [
        [replays.request(n, repeat).output.draft(i, 4) for i in range(20)]
        for n, repeat in ((0, 0), (3, 0), (0, 1))
    ]
    assert made[0] != made[1] != made[2] != made[0]
    assert replays.request(0).num_tokens == 24
    assert isinstance(replays.request(0), Request)


def test_a_trace_says_how_long_prompts_and_answers_are(tmp_path: Path) -> None:
    recording = record(tmp_path, ngram(), requests_of(3), config={"proposer": NGRAM})
    rows = [TraceRow(0.0, 5, 70), TraceRow(1.0, 9000, 3), TraceRow(2.0, 30, 1)]
    replays = Replays(Drafting(recording, SIDE, "rejection", 8), 200, rows)
    planned = [replays.request(number) for number in range(3)]
    assert [len(request.prompt_ids) for request in planned] == [5, 199, 30]
    made = simulate(
        planned, Linear(1.0), ClosedLoop(3), Method(Fixed(), DraftKind(), 8), max_len=200
    )
    by_prompt = {row.num_prompt_tokens: row.counts.num_generated_tokens for row in made.requests}
    assert by_prompt == {
        5: 70,
        199: 1,
        30: 1,
    }  # the first goes through its recorded text three times
    assert all(row.finish_reason == "length" for row in made.requests)
