"""From intervals and limits to an answer, and which setting is recommended."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Limits, gather
from specresearch.reporting.comparisons import Load
from specresearch.reporting.decision import Answer, Decision, Outcome, decide
from specresearch.reporting.verdicts import headline, word
from tests.reporting.folders import Interval, write_load, write_run

FASTER, SLOWER, UNCLEAR = (1.5, 1.4, 1.6), (0.8, 0.7, 0.9), (1.02, 0.9, 1.15)
Decide = Callable[..., list[Decision]]


@pytest.fixture
def decide_on(tmp_path: Path) -> Decide:
    def run(limits: Limits | None = None) -> list[Decision]:
        return decide(gather([tmp_path]).comparisons, limits or Limits())

    return run


def write_loads(folder: Path, gains: Sequence[Interval], **told: Any) -> None:
    for concurrency, gain in zip((1, 4, 8, 16), gains, strict=False):
        write_load(folder / f"{told.get('method', 'm')}{concurrency}", gain, concurrency=concurrency, **told)


@pytest.mark.parametrize(
    ("gains", "answer", "words"),
    [
        ([FASTER, FASTER], Answer.ON, "Turn it on"),
        ([FASTER, UNCLEAR], Answer.ON, "Turn it on"),
        ([FASTER, FASTER, UNCLEAR, SLOWER], Answer.BELOW, "Turn it on up to 4 requests at a time, off from 16"),
        ([SLOWER, FASTER], Answer.SOME, "Turn it on at 4 requests at a time only"),
        ([SLOWER, UNCLEAR], Answer.OFF, "Turn it off"),
        ([UNCLEAR, UNCLEAR], Answer.MEASURE, "Measure more: no difference from plain decoding can be told yet"),
        ([FASTER], Answer.MEASURE, "Measure under load before turning it on"),
    ],
)
def test_answers(tmp_path: Path, decide_on: Decide, gains: list[Interval], answer: Answer, words: str) -> None:
    write_loads(tmp_path, gains)
    (decision,) = decide_on()
    assert decision.answer is answer
    verdict = word(decision, Limits())
    assert verdict.headline == words
    assert all(f"{gain[0]:.2f}" in str(verdict.table) for gain in gains)
    assert headline([verdict]).startswith(words)


def test_the_crossover_lies_between_the_last_faster_and_the_first_slower_load(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_loads(tmp_path, [FASTER, FASTER, UNCLEAR, SLOWER])
    (decision,) = decide_on()
    assert (decision.last_faster, decision.first_slower) == (Load("concurrency", 4.0), Load("concurrency", 16.0))
    (fact,) = (fact for fact in word(decision, Limits()).facts if fact.term == "Crosses over")
    assert fact.lines == ("between 4 and 16 requests at a time; in between it cannot be told (8: 1.02, 0.90 to 1.15)",)


@pytest.mark.parametrize("gain", [(1.5, 1.4, 1.6), (1.5, None, None)])
def test_a_speedup_without_an_interval_decides_nothing(tmp_path: Path, decide_on: Decide, gain: Interval) -> None:
    write_run(tmp_path / "a", gain, batch_size=8)
    (decision,) = decide_on()
    assert (decision.answer is Answer.ON) == (gain[1] is not None)


def test_one_request_at_a_time_is_not_enough_and_batches_are(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "1", FASTER)
    assert decide_on()[0].answer is Answer.MEASURE
    write_run(tmp_path / "8", FASTER, batch_size=8)
    assert decide_on()[0].answer is Answer.ON


@pytest.mark.parametrize(
    ("tpot", "limit", "outcome", "standing"),
    [
        ((0.010, 0.020), 0.015, Outcome.SLOWER, "broken"),
        ((0.010, 0.01505), 0.015, Outcome.UNCLEAR, "doubtful"),
        ((0.020, 0.025), 0.015, Outcome.FASTER, "hopeless"),
        ((0.020, 0.010), 0.015, Outcome.FASTER, "kept"),
        ((0.010, 0.012), 0.015, Outcome.FASTER, None),
    ],
)
def test_limits(
    tmp_path: Path, decide_on: Decide, tpot: tuple[float, float], limit: float, outcome: Outcome, standing: str | None
) -> None:
    """The speedup alone says faster in every case."""
    write_load(tmp_path / "a", FASTER, tpot_p99=tpot)
    (point,) = decide_on(Limits(tpot=limit))[0].points
    assert point.outcome is outcome
    for name in ("broken", "doubtful", "hopeless", "kept"):
        assert getattr(point, name) == (("tpot_p99",) if name == standing else ())
    assert decide_on()[0].points[0].outcome is Outcome.FASTER


def test_a_limit_that_only_the_method_keeps_is_worth_an_unclear_speedup(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", UNCLEAR, tpot_p99=(0.02, 0.01))
    assert decide_on(Limits(tpot=0.015))[0].answer is Answer.ON
    assert decide_on(Limits(tpot=0.03))[0].answer is Answer.MEASURE


def test_the_least_speedup_worth_having_is_the_users(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", FASTER)
    assert [decide_on(Limits(worth=worth))[0].answer for worth in (1.0, 1.5, 1.7)] == [
        Answer.ON,
        Answer.MEASURE,
        Answer.OFF,
    ]


def test_wrong_output_is_turned_off_however_fast(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", (9.0, 8.0, 10.0), batch_size=8, num_outputs_equal=199)
    (decision,) = decide_on()
    assert decision.answer is Answer.OFF
    assert "changes greedy output" in word(decision, Limits()).reason
    write_run(tmp_path / "a", (9.0, 8.0, 10.0), batch_size=8, num_outputs_equal=199, num_rounding_ties=1)
    assert decide_on()[0].answer is Answer.ON


def test_the_setting_that_never_loses_much_is_recommended(tmp_path: Path, decide_on: Decide) -> None:
    """Five drafts win by a little at first and lose by much at last; the controller is never far from the best."""
    for concurrency, gain, fixed in ((1, 1.9, 2.0), (8, 1.2, 1.1), (32, 1.0, 0.6)):
        between = (gain, gain - 0.02, gain + 0.02)
        write_load(tmp_path / str(concurrency), between, concurrency=concurrency, fixed={5: fixed})
    (decision,) = decide_on()
    assert decision.policy.controller == "goodput"
    assert decision.answer is Answer.ON
    best = decision.best_fixed(Load("concurrency", 1.0))
    assert best is not None
    assert best.comparison.policy.length == 5
    verdict = word(decision, Limits())
    assert verdict.table.rows[0][3].startswith("5 drafts: 2.00")
    assert verdict.table.rows[1][3] == "this setting"


def test_without_a_controller_plain_decoding_bounds_the_regret(tmp_path: Path, decide_on: Decide) -> None:
    """Long drafts gain most where they gain, and lose more than that under load."""
    for length, gains in ((2, (1.5, 0.95)), (10, (1.9, 0.4))):
        for batch_size, gain in zip((1, 8), gains, strict=True):
            between = (gain, gain - 0.02, gain + 0.02)
            write_run(tmp_path / f"{length}-{batch_size}", between, batch_size=batch_size, length=length)
    (decision,) = decide_on()
    assert decision.policy.length == 2
    assert decision.answer is Answer.BELOW


def test_batches_are_evidence_besides_where_arrivals_were_measured(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "run", SLOWER)
    write_load(tmp_path / "load", FASTER)
    decisions = {decision.axis: decision for decision in decide_on()}
    assert (decisions["batch"].is_main, decisions["concurrency"].is_main) == (False, True)


def test_workloads_are_decided_apart(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", FASTER)
    write_load(tmp_path / "b", SLOWER, data="sharegpt")
    write_load(tmp_path / "c", SLOWER, temperature=1.0)
    decisions = decide_on()
    assert {d.workload.label: d.answer for d in decisions} == {
        "cnndm, temperature 0": Answer.ON,
        "sharegpt, temperature 0": Answer.OFF,
        "cnndm, temperature 1": Answer.OFF,
    }
    words = headline([word(decision, Limits()) for decision in decisions])
    assert words == "It depends on the workload: turn it on for 1 and turn it off for 2"


def test_under_arrivals_latency_is_compared_and_throughput_is_not(tmp_path: Path, decide_on: Decide) -> None:
    """Both sides answer what comes, so that their throughput is the same."""
    write_load(tmp_path / "a", (1.0, 0.99, 1.01), qps=4.0, tpot_p99=(0.02, 0.01))
    (decision,) = decide_on()
    gain = decision.points[0].comparison.gain
    assert gain is not None
    assert gain.value == pytest.approx(2.0)
    assert decision.answer is Answer.ON


@pytest.mark.parametrize("told", [{"ttft": 0.0}, {"tpot": -1.0}, {"worth": float("inf")}])
def test_absurd_limits_are_refused(told: dict[str, Any]) -> None:
    (name,) = told
    with pytest.raises(ValueError, match=f"--{name}="):
        Limits(**told)


def test_limits_of_load_runs_hold_where_the_user_names_none() -> None:
    runs = [{"ttft": 0.5, "tpot": 0.05}]
    assert Limits.of(None, None, 99, 1.0, runs).given() == {"ttft_p99": 0.5, "tpot_p99": 0.05}
    assert Limits.of(None, 0.1, 50, 1.0, runs).given() == {"tpot_p50": 0.1}
    assert Limits.of(None, None, 99, 1.0, [*runs, {"ttft": 1.0, "tpot": 0.1}]).given() == {}
