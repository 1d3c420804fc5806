"""Goodput control on machines whose best length is known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shape_checks import unchecked
from simulation import Machine, Simulation, batch_of, record_of, rows_of
from stream import Stream

from specresearch.batch import Batch
from specresearch.controllers import Controller, Fixed, Goodput, goodput
from specresearch.proposal import DraftKind

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
    """All measurements of a run of 800 steps, those at its start included."""
    machine = Machine(draft=1.5e-3, verify=7e-3, verify_token=0.3e-3)
    assert best_length(machine, acceptance) == 0
    steps = Simulation(Goodput(), acceptance, machine, noise=0.03).run(800)
    seconds = sum(machine.times(len(step), max(step), sum(step)).total for step in steps)
    plain = machine.times(len(acceptance), 0, 0).total * len(steps)
    assert seconds < 1.012 * plain
    assert sum(any(step) for step in steps[400:]) <= 6


def test_comes_back_when_acceptance_rises_and_stops_when_it_falls() -> None:
    simulation = Simulation(Goodput(max_slowdown=None), [0.1] * 4, Machine(draft=2e-3))
    assert np.median([max(step) for step in simulation.run(150)[50:]]) == 0
    simulation.acceptance = [0.9] * 4
    assert share_of_best(simulation, simulation.run(250)[150:]) > 0.9
    simulation.acceptance = [0.1] * 4
    assert np.median([max(step) for step in simulation.run(250)[150:]]) == 0


@pytest.mark.parametrize(
    "slower", [Machine(verify_token=10e-3), Machine(draft=20e-3)], ids=["verify", "draft"]
)
def test_follows_a_change_of_the_machine(slower: Machine) -> None:
    """To one on which speculation loses, and back."""
    acceptance = [0.6] * 4
    simulation = Simulation(Goodput(max_slowdown=None), acceptance, Machine(), noise=0.03)
    assert min(np.median(simulation.run(100)[50:], axis=0)) > 0
    simulation.machine = slower
    assert best_length(simulation.machine, acceptance) == 0
    assert np.median([max(step) for step in simulation.run(250)[150:]]) == 0
    simulation.machine = Machine()
    assert share_of_best(simulation, simulation.run(300)[200:]) > 0.9


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
    assert slowdown(1.05, (1, 1, 1, 1)) > 1.3


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
    assert (
        3
        <= num_read
        <= 0.01 * sum(len(steps) for steps in later) * machine.times(4, 0, 0).total / reading + 1
    )


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
    """Requests differ, prefill lazily, and the first drafts may mislead. Over eight seeds."""
    stream, shares = STREAMS[name], []
    with unchecked():
        for seed in range(8):
            best = max(stream.throughput(Fixed(length), seed) for length in (0, 1, 5))
            shares.append(stream.throughput(Goodput(), seed) / best)
    assert np.mean(shares) > 0.975
    assert min(shares) > 0.95


def test_its_own_time_is_not_taken_for_that_of_what_it_measures() -> None:
    """Near break-even, its own time of a tenth of a step does not change its choices."""
    machine, acceptance = Machine(draft=5.6e-3), [0.5] * 4
    assert 0.96 < machine.rate([1] * 4, acceptance) / machine.rate([0] * 4, acceptance) < 0.97
    chosen = [
        Simulation(Goodput(), acceptance, machine, control=control).run(400)
        for control in (0.0, 1e-3)
    ]
    assert chosen[0] == chosen[1]


def test_a_request_that_is_ahead_may_wait() -> None:
    """A request that is ahead may take longer steps than plain decoding's."""
    acceptance, machine = [0.5, 0.5], Machine(draft=0.2e-3, verify_token=0.5e-3)
    bound, free = (Simulation(Goodput(max_slowdown=s), acceptance, machine) for s in (1.05, None))
    lengths = [np.mean(simulation.run(300)[100:]) for simulation in (bound, free)]
    assert lengths[0] > 0.9 * lengths[1] > 0.9


def test_starts_by_measuring_plain_steps_too() -> None:
    """Drafts of a few requests, others each time."""
    steps = Simulation(Goodput(max_draft_tokens=8), [0.5] * 9).run(6)
    assert [sorted(step) for step in steps] == 3 * [[0] * 9, [0] * 6 + [1] * 3]
    assert len({tuple(step) for step in steps[1::2]}) == 3


def test_drafts_grow_as_long_as_that_pays() -> None:
    """To at most twice the longest so far; where long ones do not pay none is made."""
    machine, steep = Machine(draft=0.05e-3), Machine(draft=0.5e-3, verify=3e-3, verify_token=1.5e-3)
    longest = [
        max(step) for step in Simulation(Goodput(max_slowdown=None), [0.9] * 4, machine).run(20)
    ]
    assert longest[6:11] == [2, 4, 8, 10, 10]
    assert best_length(steep, [0.5] * 4) == 0
    assert (
        max(max(step) for step in Simulation(Goodput(max_slowdown=None), [0.5] * 4, steep).run(300))
        <= 2
    )


def test_little_evidence_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation pays even if the first drafts are rejected. The worst of twenty runs."""

    def worst() -> float:
        machine, shares = Machine(draft=3e-3), []
        for seed in range(20):
            simulation = Simulation(Goodput(), [0.55], machine)
            simulation.rng = np.random.default_rng(seed)
            shares.append(share_of_best(simulation, simulation.run(600)))
        return min(shares)

    assert worst() > 0.96
    monkeypatch.setattr(goodput, "_HOPE", 0.0)
    assert worst() < 0.9


def test_starts_with_drafts_of_many_requests() -> None:
    """Who is first does not speak for all, even where the drafter has others to read."""
    simulation = Simulation(Goodput(), [0.5] * 4, reading=0.01)
    assert np.any(simulation.run(6), axis=0).all()


@pytest.mark.parametrize(
    ("reading", "expected"), [(0.0, [True, False, True]), (0.1, [False, True, False])]
)
def test_measures_new_requests_unless_they_take_long_to_read(
    reading: float, expected: list[bool]
) -> None:
    """Two probes of one of three requests; the second request drafted before."""
    simulation = Simulation(Goodput(), [0.05] * 3, Machine(draft=5e-3), reading=reading, room=50)
    simulation.run(20)
    before = simulation.rows[1]
    simulation.replace_rows()
    simulation.rows[1], simulation.has_read[1] = before, True
    steps = simulation.run(60)
    assert sum(map(any, steps)) == 2
    assert np.any(steps, axis=0).tolist() == expected


def test_measures_again_now_and_then() -> None:
    simulation = Simulation(Goodput(probe_every=10), [0.05], Machine(draft=5e-3))
    drafted = [i for i, (length,) in enumerate(simulation.run(200)) if i >= 50 and length]
    assert drafted
    assert all(i % 10 == 0 for i in drafted)


def test_the_proposer_and_the_request_set_limits() -> None:
    controller = Goodput()
    controller.bind(DraftKind(), 4)
    simulation = Simulation(controller, [0.95] * 3, Machine(draft=0.0, verify_token=0.0))
    assert {length for step in simulation.run(40) for length in step} == {0, 1, 2, 4}
    rows = [*rows_of(1, num_draft_tokens=2), *rows_of(2)]
    batch = batch_of(rows)
    rows[2].max_new_tokens = 4
    assert controller.budget(batch) == [2, 4, 3]


@pytest.mark.parametrize("acceptance", [0.0, 0.9], ids=["never", "mostly"])
def test_decides_ever_more_rarely_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, acceptance: float
) -> None:
    """Decisions hold for 1, 2, 4 and then 8 steps, or 32 without drafts, except for probes."""
    decide, simulation = Goodput._decide, Simulation(Goodput(), [acceptance] * 2, Machine())
    at: list[int] = []

    def noted(self: Goodput, batch: Batch) -> list[int]:
        at.append(self._num_steps)
        return decide(self, batch)

    monkeypatch.setattr(Goodput, "_decide", noted)
    simulation.run(300)
    most = 8 if acceptance else 32
    assert set(np.diff(at)) <= {1, 2, 3, 4, 5, 8, 9, most // 2, most // 2 + 1, most, most + 1}
    assert np.median(np.diff(at)[-5:]) == most


def test_only_those_are_measured_that_it_steers() -> None:
    """Requests with their own number of drafts, or without room, take no part in probes."""
    controller, rows = Goodput(max_draft_tokens=2), [*rows_of(1, num_draft_tokens=8), *rows_of(3)]
    for step in range(6):
        batch = batch_of(rows)
        rows[1].max_new_tokens = 1
        chosen = [n or 0 for n in controller.budget(batch)]
        assert chosen[:2] == [0, 0]
        assert any(chosen) == bool(step % 2)
        controller.observe(
            replace(record_of([8, *chosen[1:]], [8, 0, 0, 0]), num_lazy_prefill_tokens=50)
        )
    for _ in range(100):
        assert max(n or 0 for n in controller.budget(batch_of(rows))[1:]) <= 2
        controller.observe(record_of([8, 0, 0, 0], [8, 0, 0, 0]))


def test_a_cut_output_does_not_count_as_a_refusal() -> None:
    controller = Goodput()
    controller.budget(batch_of(rows_of(1)))
    whole = record_of([5], [3])
    controller.observe(replace(whole, num_new_tokens=(3,)))
    (state,) = controller._evidence.requests.selected
    acceptance = state.acceptance
    assert (acceptance.happened, acceptance.tried) == (3, 3)
    controller.observe(whole)
    assert 6.9 < acceptance.tried < 7
    controller.observe(replace(whole, expected_acceptance=((0.5, 0.25, 0.25, 0.5, 0.9),)))
    assert 5.7 + 1.5 < acceptance.happened < 6 + 1.5


def test_finished_requests_are_forgotten() -> None:
    controller, rows = Goodput(), rows_of(3)
    for size in (3, 2):
        controller.budget(batch_of(rows[:size]))
        controller.observe(record_of([0] * size, [0] * size))
    assert len(controller._evidence.requests) == 3
    del rows[1:]
    assert len(controller._evidence.requests) == 1


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
    assert [row["step"] for row in rows] == [50, 100, 150, 200]
    assert isinstance(controller, Controller)
    for row in rows:
        assert row["estimated_seconds"] == pytest.approx(row["measured_seconds"], rel=0.05)
        parts = [row[f"{name}_seconds"] for name in ("draft", "verify", "overhead")]
        assert sum(parts) == pytest.approx(row["estimated_seconds"])
        assert 0.6 < row["acceptance"] < 0.9


@pytest.mark.parametrize(
    ("num_accepted", "node_seconds", "drafts"),
    [(2.5, 1e-5, True), (0.1, 1e-4, False), (1.0, 1e-3, False), (1.0, 1e-5, True)],
)
def test_trees_are_drafted_whole_or_not_at_all(
    num_accepted: float, node_seconds: float, drafts: bool
) -> None:
    """A step takes 10 ms, and a tree of 60 nodes 0.6, 6 or 60 ms more for each request."""
    controller, rng, num_nodes = Goodput(), np.random.default_rng(0), 60
    controller.bind(DraftKind(trees=True), num_nodes)
    batch, share = batch_of(rows_of(4)), []
    machine = Machine(verify_token=node_seconds)
    for _ in range(300):
        budget = controller.budget(batch)
        assert set(budget) <= {None, 0}
        drafted = [num_nodes if number is None else 0 for number in budget]
        accepted = [int(rng.poisson(num_accepted)) if number else 0 for number in drafted]
        times = machine.times(len(drafted), min(1, max(drafted)), sum(drafted))
        controller.observe(record_of(drafted, accepted, times))
        share.append(sum(map(bool, drafted)) / len(drafted))
    late = float(np.mean(share[100:]))
    assert late > 0.9 if drafts else late < 0.1


@pytest.mark.parametrize(
    "setting",
    [
        {"max_draft_tokens": 0},
        {"max_slowdown": 0.9},
        {"probe_every": 1},
        {"prior_weight": 0.0},
        {"memory": 1.0},
    ],
)
def test_settings_out_of_range(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"controller.{next(iter(setting))}="):
        Goodput(**setting)
