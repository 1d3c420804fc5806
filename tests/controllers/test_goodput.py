"""Goodput control on machines whose best length is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from shape_checks import unchecked
from simulation import Machine, Simulation, batch_of, record_of, rows_of
from stream import Stream

from specresearch.batch import Batch
from specresearch.controllers import Controller, Fixed, Goodput
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes
from specresearch.proposal import DraftForecast

MACHINES = {
    "default": (Machine(), [0.8] * 4),
    "alone": (Machine(), [0.6]),
    "nearly_free": (Machine(draft=0.05e-3), [0.9]),
    "slow_draft": (Machine(draft=20e-3), [0.5] * 4),
    "busy": (Machine(verify_token=3e-3), [0.6] * 8),
    "draft_by_token": (Machine(draft=0.2e-3, draft_token=0.2e-3), [0.7] * 8),
}
LOSING = ("slow_draft", "busy")


def best_length(machine: Machine, acceptance: list[float], most: int = 10) -> int:
    return max(range(most + 1), key=lambda k: machine.rate([k] * len(acceptance), acceptance))


def share_of_best(simulation: Simulation, lengths: list[list[int]]) -> float:
    """Mean expected throughput of the steps over that of the best common length."""
    machine, acceptance = simulation.machine, list(simulation.acceptance)
    best = machine.rate([best_length(machine, acceptance)] * len(acceptance), acceptance)
    return float(np.mean([machine.rate(step, acceptance) for step in lengths])) / best


class Cold:
    """The first step of every length takes long, and one later."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, step: int, longest: int) -> float:
        is_first = longest not in self.seen
        self.seen.add(longest)
        return 2.0 if is_first or step == 30 else 0.0


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_converges_to_the_best_length(name: str, noise: float) -> None:
    """Within 60 steps, the slow first call of every length and a slow step later on included."""
    machine, acceptance = MACHINES[name]
    simulation = Simulation(
        Goodput(max_slowdown=None),
        acceptance,
        machine,
        noise=noise,
        outlier=Cold(),
    )
    simulation.run(60)
    chosen = simulation.run(200)
    assert share_of_best(simulation, chosen) > 0.95
    typical = float(np.median([np.mean(step) for step in chosen]))
    assert abs(typical - best_length(machine, acceptance)) <= 1
    assert (best_length(machine, acceptance) == 0) == (name in LOSING)
    assert (typical == 0) == (name in LOSING)


@pytest.mark.parametrize("acceptance", [[0.1], [0.2] * 8], ids=["alone", "together"])
def test_measuring_costs_little_where_drafts_never_pay(acceptance: list[float]) -> None:
    """All trials of a run of 800 steps, those at its start included, take what they are allowed."""
    machine = Machine(draft=1.5e-3, verify=7e-3, verify_token=0.3e-3)
    assert best_length(machine, acceptance) == 0
    steps = Simulation(Goodput(), acceptance, machine, noise=0.03).run(800)
    plain = machine.rate([0] * len(acceptance), acceptance)
    assert np.mean([plain / machine.rate(step, acceptance) for step in steps]) < 1.015
    assert sum(any(step) for step in steps[400:]) <= 30
    silent = Simulation(Goodput(explore=0.0), acceptance, machine, noise=0.03).run(800)
    assert not any(map(any, silent[100:]))


def test_comes_back_when_acceptance_rises_and_stops_when_it_falls() -> None:
    simulation = Simulation(Goodput(max_slowdown=None), [0.1] * 4, Machine(draft=2e-3))
    assert np.median([max(step) for step in simulation.run(150)[50:]]) == 0
    simulation.acceptance = [0.9] * 4
    assert share_of_best(simulation, simulation.run(250)[150:]) > 0.9
    simulation.acceptance = [0.1] * 4
    assert np.median([max(step) for step in simulation.run(250)[150:]]) == 0


class Counting(Goodput):
    """Counts its decisions."""

    num_decisions = 0

    def _decide(self, batch: Batch) -> None:
        self.num_decisions += 1
        super()._decide(batch)


def test_drafts_that_take_far_longer_than_planned_are_reconsidered_at_once() -> None:
    """Even where decisions have taken so much of the time that the next one has to wait."""
    controller = Counting()
    simulation = Simulation(controller, [0.8] * 4, Machine(), control=5e-3)
    assert all(map(any, simulation.run(200)[100:]))
    num = controller.num_decisions
    while controller.num_decisions == num:
        simulation.run(1)
    num += 1
    simulation.run(20)
    assert controller.num_decisions == num
    simulation.machine = Machine(verify_token=10e-3)
    simulation.run(4)
    assert controller.num_decisions > num


@pytest.mark.parametrize(
    "slower", [Machine(verify_token=10e-3), Machine(draft=20e-3)], ids=["verify", "draft"]
)
def test_follows_a_change_of_the_machine(slower: Machine) -> None:
    """To one on which speculation loses, and back."""
    acceptance = [0.6] * 4
    controller = Goodput(explore=0.02)
    simulation = Simulation(controller, acceptance, Machine(), noise=0.03)
    assert min(np.median(simulation.run(100)[50:], axis=0)) > 0
    simulation.machine = slower
    assert best_length(simulation.machine, acceptance) == 0
    assert np.median([max(step) for step in simulation.run(250)[150:]]) == 0
    simulation.machine = Machine()
    assert share_of_best(simulation, simulation.run(1200)[1000:]) > 0.9


def test_requests_get_lengths_of_their_own() -> None:
    acceptance = [0.95, 0.9, 0.3, 0.1]
    simulation = Simulation(
        Goodput(max_slowdown=None), acceptance, Machine(draft=0.2e-3, verify_token=1e-3)
    )
    simulation.run(100)
    chosen = simulation.run(400)
    assert share_of_best(simulation, chosen) > 1.05
    means = np.mean(chosen, axis=0)
    assert means[0] > means[1] > means[2] >= means[3]


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_request_becomes_slower_than_plain_decoding(noise: float) -> None:
    """Two of four requests have all drafts rejected; a bound limits their loss at the cost of
    throughput. Without the bound they lose more, so the test can fail."""
    machine, acceptance = Machine(draft=0.2e-3, verify_token=1e-3), [0.95, 0.9, 0.0, 0.0]
    plain = machine.times(4, 0, 0).total
    slowdown, throughput = {}, {}
    for bound in (None, 1.2, 1.05):
        simulation = Simulation(Goodput(max_slowdown=bound), acceptance, machine, noise=noise)
        simulation.run(50)
        steps = simulation.run(400)
        slowdown[bound] = (
            np.mean([machine.times(4, max(step), sum(step)).total for step in steps]) / plain
        )
        throughput[bound] = np.mean([machine.rate(step, acceptance) for step in steps])
    assert slowdown[None] > 1.5
    assert slowdown[1.2] < 1.23
    assert slowdown[1.05] < 1.08
    assert throughput[None] > throughput[1.2] > throughput[1.05] > machine.rate([0] * 4, acceptance)


def test_requests_without_drafts_do_not_pay_for_others() -> None:
    """A prompt lookup finds nothing for two of four requests, which get one token a step."""
    machine, acceptance = Machine(draft=0.0, verify_token=1e-3), [0.95, 0.9, 0.6, 0.6]
    plain = machine.times(4, 0, 0).total

    def slowdown(bound: float | None, supply: Sequence[float]) -> float:
        simulation = Simulation(Goodput(max_slowdown=bound), acceptance, machine, supply=supply)
        simulation.run(50)
        times = [machine.times(4, max(step), sum(step)).total for step in simulation.run(400)]
        return float(np.mean(times)) / plain

    assert slowdown(None, (1, 1, 0, 0)) > 1.3
    assert slowdown(1.05, (1, 1, 0, 0)) < 1.08
    assert slowdown(1.05, (1, 1, 1, 1)) > 1.12


@pytest.mark.parametrize(
    ("acceptance", "supply"), [((0.9, 0.9, 0.0, 0.0), (1, 1, 1, 1)), ((0.9,) * 4, (1, 1, 0, 0))]
)
def test_few_steps_show_which_requests_would_lose(
    acceptance: Sequence[float], supply: Sequence[float]
) -> None:
    """Half of the requests have rejected drafts or none; which ones is not known beforehand."""
    machine = Machine(draft=0.0, verify_token=1e-3)

    def slowdown(bound: float | None) -> float:
        simulation = Simulation(Goodput(max_slowdown=bound), acceptance, machine, supply=supply)
        chosen: list[list[int]] = []
        for _ in range(12):
            simulation.replace_rows()
            chosen += simulation.run(40)
        return float(
            np.mean([machine.times(4, max(step), sum(step)).total for step in chosen[160:]])
        ) / (machine.times(4, 0, 0).total)

    assert slowdown(None) > 1.5
    assert slowdown(1.05) < 1.2


def generations(
    acceptance: float, machine: Machine, reading: float, seed: int, num: int
) -> list[list[list[int]]]:
    """Lengths of four requests at a time that last for forty steps."""
    simulation = Simulation(
        Goodput(), [acceptance] * 4, machine, reading=reading, room=50, seed=seed
    )
    chosen = []
    for _ in range(num):
        simulation.replace_rows()
        chosen.append(simulation.run(40))
    return chosen


@pytest.mark.parametrize("seed", range(4))
def test_does_not_draft_if_the_prefill_costs_more(seed: int) -> None:
    """Drafts gain a third after the lazy prefill, which takes as long as twenty steps."""
    for reading, expected in ((0.0, True), (0.2, False)):
        steps = generations(0.7, Machine(draft=3e-3), reading, seed, num=12)[5:]
        assert bool(np.any(steps)) == expected
        assert not expected or np.mean(steps) > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_probes_prefill_little(seed: int) -> None:
    """Drafts do not pay, and probes of new requests cost a lazy prefill of three steps each."""
    reading, machine = 0.03, Machine()
    later = generations(0.1, machine, reading, seed, num=40)[1:]
    num_read = sum(int(np.any(steps, axis=0).sum()) for steps in later)
    share = 0.005 * sum(len(steps) for steps in later)
    assert 1 <= num_read <= share * machine.times(4, 0, 0).total / reading + 2


STREAMS = {  # one draft is fastest by a twentieth, or none is, or five are
    "gains_little": Stream(Machine(draft=2.1e-3, verify=8.2e-3, verify_token=0.17e-3), 8, 80, 0.57),
    "gains_little_after_refusals": Stream(
        Machine(draft=2.4e-3, verify=8.2e-3, verify_token=0.25e-3), 4, 48, 0.57, 0.05
    ),
    "loses": Stream(Machine(draft=5e-3, verify=11e-3, verify_token=0.2e-3), 16, 128, 0.57),
    "gains_much": Stream(Machine(draft=1.7e-3, verify=11e-3, verify_token=0.2e-3), 8, 80, 0.9),
}


@pytest.mark.parametrize("name", STREAMS)
def test_requests_that_come_and_go_are_served_at_nearly_the_best_length(name: str) -> None:
    """Requests differ, prefill lazily, and the first drafts may mislead. Over four seeds."""
    stream, shares = STREAMS[name], []
    with unchecked():
        for seed in range(4):
            best = max(stream.throughput(Fixed(length), seed) for length in (0, 1, 5))
            shares.append(stream.throughput(Goodput(), seed) / best)
    least = 0.94 if name.endswith("refusals") else 0.975
    assert np.mean(shares) > least
    assert min(shares) > least - 0.03


def test_its_own_time_counts_as_a_cost_of_drafts() -> None:
    """Drafts gain a twentieth, and steering them takes a fifth of a step."""
    machine, acceptance = Machine(draft=4.3e-3), [0.5] * 4
    assert 1.03 < machine.rate([1] * 4, acceptance) / machine.rate([0] * 4, acceptance) < 1.07
    share = []
    for control in (0.0, 2e-3):
        simulation = Simulation(Goodput(), acceptance, machine, control=control)
        share.append(float(np.mean([any(step) for step in simulation.run(600)[300:]])))
    assert share[0] > 0.7 > 0.2 > share[1]


def test_a_request_that_is_ahead_may_wait() -> None:
    """A request that is ahead may take longer steps than plain decoding's."""
    acceptance, machine = [0.5, 0.5], Machine(draft=0.2e-3, verify_token=0.5e-3)
    lengths = []
    for slowdown in (1.05, None):
        runs = [
            Simulation(Goodput(max_slowdown=slowdown), acceptance, machine, seed=seed).run(300)
            for seed in range(8)
        ]
        lengths.append(np.mean([run[100:] for run in runs]))
    assert lengths[0] > 0.9 * lengths[1] > 0.9


def test_starts_by_measuring_plain_steps_and_drafts_of_a_few_requests() -> None:
    steps = Simulation(Goodput(), [0.5] * 9).run(5)
    assert [sorted(step) for step in steps] == [[0] * 9] * 3 + [[0] * 6 + [3] * 3] * 2
    assert steps[3] == steps[4]


def forecast_of(machine: Machine, acceptance: float, num_rows: int) -> DraftForecast:
    """What `auto` would measure."""
    depths, nums = (0, 1, 4), (0, num_rows, 4 * num_rows)
    return DraftForecast(
        survival=tuple((acceptance ** np.arange(1, 5)).tolist()),
        nodes=(1.0,) * 4,
        drafted=1.0,
        num_rows=num_rows,
        draft_seconds=tuple((n, machine.times(num_rows, n, 0).propose) for n in depths),
        rest_seconds=tuple((n, machine.times(num_rows, 0, n).total) for n in nums),
    )


@pytest.mark.parametrize("pays", [True, False])
def test_what_was_measured_before_the_run_leaves_two_first_steps(pays: bool) -> None:
    """The one with drafts tells what lazy prefill takes, which only a few rows pay for."""
    machine, acceptance = MACHINES["default" if pays else "slow_draft"][0], 0.8 if pays else 0.5
    controller = Goodput(explore=0.0)
    simulation = Simulation(controller, [acceptance] * 9, machine)
    controller.foresee(forecast_of(machine, acceptance, 9))
    steps = simulation.run(4)
    assert [sorted(step) for step in steps[:2]] == [[0] * 9, [0] * 6 + [3] * 3]
    assert all(min(step) > 0 if pays else max(step) == 0 for step in steps[2:])


def test_few_refusals_say_little_of_a_request() -> None:
    """Unless a bound on the slowdown makes it urgent."""

    def num_drafting(**settings: Any) -> int:
        controller = Goodput(explore=0.0, **settings)
        simulation = Simulation(controller, [0.6])
        controller.foresee(forecast_of(Machine(), 0.6, 1))
        simulation.run(100)
        simulation.acceptance = [0.0]
        simulation.replace_rows()
        return sum(max(step) > 0 for step in simulation.run(60))

    at_once = num_drafting(prior_weight=10.0)
    assert num_drafting() > 1.5 * at_once > 0
    bound = num_drafting(max_slowdown=1.05)
    assert bound == num_drafting(max_slowdown=1.05, prior_weight=10.0)


def test_drafts_grow_as_long_as_that_pays() -> None:
    """Where long ones do not pay none is made."""
    machine, steep = Machine(draft=0.05e-3), Machine(draft=0.5e-3, verify=3e-3, verify_token=1.5e-3)
    longest = [max(step) for step in Simulation(Goodput(), [0.9] * 4, machine).run(30)]
    assert longest[-4:] == [10] * 4
    assert best_length(steep, [0.5] * 4) == 0
    assert max(max(step) for step in Simulation(Goodput(), [0.5] * 4, steep).run(300)) <= 3


def test_first_refusals_do_not_decide() -> None:
    """Speculation pays even if all drafts of the first steps are rejected.

    Without trials it would not be found out.
    """

    def share(explore: float) -> float:
        simulation = Simulation(Goodput(explore=explore), [0.0], Machine(draft=3e-3))
        simulation.run(10)
        simulation.acceptance = [0.55]
        return share_of_best(simulation, simulation.run(800))

    assert share(0.005) > 0.9 > share(0.0)


def test_the_proposer_and_the_request_set_limits() -> None:
    controller = Goodput()
    machine = Machine(draft=0.0, verify_token=0.0)
    simulation = Simulation(controller, [0.95] * 3, machine, most=4)
    assert {length for step in simulation.run(40) for length in step} == {0, 3, 4}
    rows = [*rows_of(1, num_draft_tokens=2), *rows_of(2)]
    batch = batch_of(rows)
    rows[2].max_new_tokens = 4
    assert controller.budget(batch) == [2, 4, 3]


@pytest.mark.parametrize("acceptance", [0.0, 0.9], ids=["never", "mostly"])
def test_decides_ever_more_rarely_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, acceptance: float
) -> None:
    """Decisions hold for 2, 4 and then 8 steps, or 32 without drafts, except for trials of 2."""
    decide, simulation = Goodput._decide, Simulation(Goodput(), [acceptance] * 2, Machine())
    at: list[int] = []

    def noted(self: Goodput, batch: Batch) -> None:
        at.append(self._schedule.step)
        decide(self, batch)

    monkeypatch.setattr(Goodput, "_decide", noted)
    simulation.run(400)
    most = 8 if acceptance else 32
    assert set(np.diff(at)) <= {2, 4, 8, 16, most}
    assert np.max(np.diff(at)[-5:]) == most


@pytest.mark.parametrize(
    ("reading", "bound", "num_decisions"), [(0.0, None, 0), (0.02, None, 0), (0.0, 1.5, 1)]
)
def test_a_newcomer_drafts_without_a_decision_unless_its_slowdown_is_bounded(
    monkeypatch: pytest.MonkeyPatch, reading: float, bound: float | None, num_decisions: int
) -> None:
    controller, decided = Goodput(max_slowdown=bound), []
    simulation = drafting_for_a_while(controller, reading)
    before = list(controller._depths)
    decide = Goodput._decide

    def noted(self: Goodput, batch: Batch) -> None:
        decided.append(batch)
        decide(self, batch)

    monkeypatch.setattr(Goodput, "_decide", noted)
    a_newcomer_in_the_middle(simulation)
    asked = simulation.step()
    assert len(decided) == num_decisions
    assert min(asked) > 0
    if not num_decisions:
        assert [asked[0], asked[2]] == [before[2], before[0]]
    simulation.step()
    assert len(decided) == num_decisions  # the same requests go on


def test_a_newcomer_drafts_only_if_that_pays_for_reading_its_prompt() -> None:
    simulation = drafting_for_a_while(Goodput(), reading=0.02)
    simulation.room = 3
    a_newcomer_in_the_middle(simulation)
    asked = simulation.step()
    assert asked[1] == 0 < min(asked[0], asked[2])


def test_a_newcomer_starts_drafts_that_the_last_request_refused() -> None:
    controller = Goodput(explore=0.0)
    simulation = Simulation(controller, [0.9], Machine())
    simulation.run(200)
    simulation.acceptance = [0.0]
    simulation.replace_rows()
    while controller._schedule.is_drafting or controller._schedule._next < simulation.num_steps + 3:
        simulation.step()
    assert simulation.step() == [0]
    simulation.acceptance = [0.9]
    simulation.replace_rows()
    assert simulation.step()[0] > 0


class DecidesSlowly(Goodput):
    """Takes a tenth of a step to decide, and says when it does."""

    def __init__(self) -> None:
        super().__init__(explore=0.0)
        self.at: list[int] = []

    def observe(self, record: StepRecord) -> None:
        has_decided = self._schedule.has_just_decided
        if has_decided:
            self.at.append(self._schedule.step)
        times = record.times
        control = 0.1 * times.total * has_decided
        times = replace(times, control=control, total=times.total + control)
        super().observe(replace(record, times=times))


def test_newcomers_cause_no_more_decisions_than_can_be_paid_for_where_nothing_drafts() -> None:
    """One in twenty steps, which is half a percent of the time, after those of the start."""
    controller = DecidesSlowly()
    simulation = Simulation(controller, [0.0], Machine())
    for _ in range(100):
        simulation.replace_rows()
        later = simulation.run(10)
    assert later == [[0]] * 10
    assert 5 <= sum(step >= 800 for step in controller.at) <= 11
    assert len(controller.at) <= 0.05 * (1000 + 500) + 1


def drafting_for_a_while(controller: Goodput, reading: float) -> Simulation:
    """Return three requests that draft, and will go on for three steps without a decision."""
    simulation = Simulation(controller, [0.9] * 3, Machine(), reading=reading)
    simulation.run(100)
    while controller._schedule._next < controller._schedule.step + 3:
        simulation.step()
    return simulation


def a_newcomer_in_the_middle(simulation: Simulation) -> None:
    """The second request leaves, and the others change places."""
    rows = simulation.rows
    simulation.rows = [rows[2], *rows_of(1, num_tokens=100), rows[0]]
    simulation.has_read = [True, False, True]


def test_drafts_whose_prefill_is_expensive_are_tried_for_long_enough() -> None:
    """One request at a time, each of which a lazy drafter has to read for four steps' time.

    Trials of two steps did not show that drafts gain.
    """
    machine = Machine(draft=1e-3, verify=4e-3, verify_token=0.05e-3, overhead=0.1e-3)

    def rate(controller: Controller, seed: int) -> float:
        simulation = Simulation(
            controller, [0.45], machine, most=4, noise=0.05, reading=16e-3, room=60, seed=seed
        )
        num_tokens, seconds, observe = 0, 0.0, controller.observe

        def counted(record: StepRecord) -> None:
            nonlocal num_tokens, seconds
            num_tokens += sum(record.num_new_tokens)
            seconds += record.times.total + record.times.lazy_prefill
            observe(record)

        controller.observe = counted  # pyright: ignore[reportAttributeAccessIssue]
        for _ in range(27):
            simulation.run(55)
            simulation.replace_rows()
        return num_tokens / seconds

    steered = np.mean([rate(Goodput(4), seed) for seed in range(6)])
    fixed = np.mean([rate(Fixed(1), seed) for seed in range(6)])
    assert steered > 0.98 * fixed


def test_only_those_are_tried_that_it_steers() -> None:
    """Requests with their own number of drafts, or without room, take no part in trials."""
    controller, rows = Goodput(max_draft_tokens=2), [*rows_of(1, num_draft_tokens=8), *rows_of(3)]
    for _ in range(100):
        batch = batch_of(rows)
        rows[1].max_new_tokens = 1
        chosen = [n or 0 for n in controller.budget(batch)]
        assert chosen[:2] == [8, 0]
        assert max(chosen[2:]) <= 2
        controller.observe(
            replace(record_of([8, *chosen[1:]], [8, 0, 0, 0]), num_lazy_prefill_tokens=50)
        )


def test_a_cut_output_does_not_count_as_a_refusal() -> None:
    controller = Goodput(max_draft_tokens=5)

    def judged(record: StepRecord) -> tuple[float, float]:
        controller.reset()
        controller.budget(batch_of(rows_of(1)))
        controller._asked = [5]
        controller.observe(record)
        controller.trace()
        (state,) = controller._estimates.evidence.requests.selected
        return state.num_accepted, state.num_judged

    whole = record_of([5], [3])
    assert judged(replace(whole, num_new_tokens=(3,))) == (3, 3)
    assert judged(whole) == (3, 4)
    likely = replace(whole, expected_acceptance=((0.5, 0.25, 0.25, 0.5, 0.9),))
    assert judged(likely) == (1.5, 4)


def test_a_draft_that_was_not_made_counts_as_refused_and_takes_no_node() -> None:
    """A prompt lookup finds something half of the time, which is then right."""
    controller, rows = Goodput(max_draft_tokens=3), rows_of(1)
    for step in range(200):
        controller.budget(batch_of(rows))
        controller._asked = [3]
        made = 3 * (step % 2)
        controller.observe(record_of([made], [made]))
    controller.trace()
    evidence = controller._estimates.evidence
    assert evidence.rates()[0] == pytest.approx(0.5, abs=0.05)
    assert evidence.rates()[1:].min() > 0.9
    assert evidence.nodes() == pytest.approx([0.5] * 3, abs=0.05)


def test_finished_requests_are_forgotten() -> None:
    controller, rows = Goodput(), rows_of(3)
    for size in (3, 2):
        controller.budget(batch_of(rows[:size]))
        controller.observe(record_of([0] * size, [0] * size))
    controller.trace()
    assert len(controller._estimates.evidence.requests) == 3
    del rows[1:]
    assert len(controller._estimates.evidence.requests) == 1


def test_reset_forgets_everything() -> None:
    controller = Goodput()
    first = Simulation(controller, [0.9, 0.2]).run(60)
    assert controller.trace()
    controller.reset()
    assert controller.trace() == []
    assert Simulation(controller, [0.9, 0.2]).run(60) == first


def test_trace_compares_estimates_with_measurements() -> None:
    controller = Goodput(trace_every=50)
    Simulation(controller, [0.8] * 4, noise=0.02).run(206)
    rows = controller.trace()
    assert [row["step"] for row in rows][:4] == [50, 100, 150, 200]
    assert isinstance(controller, Controller)
    for row in rows[1:]:
        assert row["estimated_seconds"] == pytest.approx(row["measured_seconds"], rel=0.05)
        parts = [row[f"{name}_seconds"] for name in ("draft", "rest")]
        assert sum(parts) == pytest.approx(row["estimated_seconds"])
        assert 0.6 < row["acceptance"] < 0.9


@pytest.mark.parametrize(
    "setting",
    [
        {"max_draft_tokens": 0},
        {"max_slowdown": 0.9},
        {"margin": -0.1},
        {"explore": 1.0},
        {"prior_weight": 0.0},
        {"memory": 1.0},
    ],
)
def test_settings_out_of_range(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"controller.{next(iter(setting))}="):
        Goodput(**setting)


@dataclass(frozen=True)
class OwnPlainTime(Machine):
    """A machine on which steps with drafts do not tell what plain ones take."""

    plain: float = 10e-3

    def times(self, num_rows: int, longest: int, num_drafts: int) -> StepTimes:
        machine = self if num_drafts else replace(self, verify=self.plain)
        return Machine.times(machine, num_rows, longest, num_drafts)


@pytest.mark.parametrize("seed", range(3))
def test_plain_steps_that_become_faster_are_noticed_while_drafting(seed: int) -> None:
    """Drafts gain 13% at first and lose 4% later, although they take as long as ever."""
    machine = OwnPlainTime(draft=2.6e-3)
    simulation = Simulation(Goodput(), [0.45] * 4, machine, seed=seed)
    assert np.mean([max(step) > 0 for step in simulation.run(100)[40:]]) > 0.7
    simulation.machine = replace(machine, plain=8.3e-3)
    later = simulation.run(400)[200:]
    assert np.mean([max(step) > 0 for step in later]) < 0.3
