"""From intervals and limits to an answer, and which setting is recommended."""

import json
from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements
from specresearch.reporting.cards import compose_cards, headline
from specresearch.reporting.comparison import Outcome, Standing
from specresearch.reporting.decision import Answer
from specresearch.reporting.recommendation import explain
from specresearch.reporting.workload import Load
from tests.reporting.decisions import FASTER, SLOWER, UNCLEAR, Decide
from tests.reporting.folders import Interval, write_load, write_run


@pytest.mark.parametrize("gain", [(1.5, 1.4, 1.6), (1.5, None, None)])
def test_a_speedup_without_an_interval_decides_nothing(
    tmp_path: Path, decide_on: Decide, gain: Interval
) -> None:
    write_run(tmp_path / "a", gain, batch_size=8)
    (decision,) = decide_on()
    assert (decision.answer is Answer.ON) == (gain[1] is not None)


def test_one_request_at_a_time_is_not_enough_and_batches_are(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_run(tmp_path / "1", FASTER)
    assert decide_on()[0].answer is Answer.MEASURE
    unmeasured: Any = (1.5, None, None)
    write_run(tmp_path / "4", unmeasured, batch_size=4)
    assert decide_on()[0].answer is Answer.MEASURE
    write_run(tmp_path / "8", FASTER, batch_size=8)
    assert decide_on()[0].answer is Answer.ON


@pytest.mark.parametrize(
    ("tpot", "limit", "outcome", "standing"),
    [
        ((0.010, 0.020), 0.015, Outcome.SLOWER, Standing.BROKEN),
        ((0.010, 0.01505), 0.015, Outcome.UNCLEAR, Standing.DOUBTFUL),
        ((0.020, 0.025), 0.015, Outcome.FASTER, Standing.HOPELESS),
        ((0.020, 0.010), 0.015, Outcome.FASTER, Standing.KEPT),
        ((0.010, 0.012), 0.015, Outcome.FASTER, None),
    ],
)
def test_limits(
    tmp_path: Path,
    decide_on: Decide,
    tpot: tuple[float, float],
    limit: float,
    outcome: Outcome,
    standing: Standing | None,
) -> None:
    """The speedup alone says faster in every case."""
    write_load(tmp_path / "a", FASTER, tpot_p99=tpot)
    (point,) = decide_on(Requirements(tpot=limit))[0].points
    assert point.outcome is outcome
    assert point.standings == ({"tpot_p99": standing} if standing else {})
    assert decide_on()[0].points[0].outcome is Outcome.FASTER


def test_a_limit_that_only_the_method_keeps_is_worth_an_unclear_speedup(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_load(tmp_path / "a", UNCLEAR, tpot_p99=(0.02, 0.01))
    assert decide_on(Requirements(tpot=0.015))[0].answer is Answer.ON
    assert decide_on(Requirements(tpot=0.03))[0].answer is Answer.MEASURE


def test_the_least_speedup_worth_having_is_the_users(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", FASTER)
    assert [decide_on(Requirements(worth=worth))[0].answer for worth in (1.0, 1.5, 1.7)] == [
        Answer.ON,
        Answer.MEASURE,
        Answer.OFF,
    ]


def test_wrong_output_is_turned_off_however_fast(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", (9.0, 8.0, 10.0), batch_size=8, num_outputs_equal=199)
    (decision,) = decide_on()
    assert decision.answer is Answer.OFF
    assert "changes the target's output" in explain(decision, Requirements()).reason
    write_run(
        tmp_path / "a", (9.0, 8.0, 10.0), batch_size=8, num_outputs_equal=199, num_rounding_ties=1
    )
    assert decide_on()[0].answer is Answer.ON


def test_the_setting_that_never_loses_much_is_recommended(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Five drafts first win by a little, then lose by much; the controller stays near the best."""
    for concurrency, gain, fixed in ((1, 1.9, 2.0), (8, 1.2, 1.1), (32, 1.0, 0.6)):
        between = (gain, gain - 0.02, gain + 0.02)
        write_load(tmp_path / str(concurrency), between, concurrency=concurrency, fixed={5: fixed})
    (decision,) = decide_on()
    assert decision.setting.controller == "goodput"
    assert decision.answer is Answer.ON
    best = decision.best_fixed(Load("concurrency", 1.0))
    assert best is not None
    assert best.setting.length == 5
    verdict = explain(decision, Requirements())
    assert verdict.table.rows[0][3].startswith("5 drafts: 2.00")
    assert verdict.table.rows[1][3] == "this setting"


def test_without_a_controller_plain_decoding_bounds_the_regret(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Long drafts gain most where they gain, and lose more than that under load."""
    for length, gains in ((2, (1.5, 0.95)), (10, (1.9, 0.4))):
        for batch_size, gain in zip((1, 8), gains, strict=True):
            between = (gain, gain - 0.02, gain + 0.02)
            write_run(
                tmp_path / f"{length}-{batch_size}", between, batch_size=batch_size, length=length
            )
    (decision,) = decide_on()
    assert decision.setting.length == 2
    assert decision.answer is Answer.BELOW


def test_batches_are_evidence_besides_where_arrivals_were_measured(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_run(tmp_path / "run", SLOWER)
    write_load(tmp_path / "load", FASTER)
    decisions = {decision.axis: decision for decision in decide_on()}
    assert (decisions["batch"].is_main, decisions["concurrency"].is_main) == (False, True)


def test_workloads_are_decided_apart(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", FASTER)
    write_load(tmp_path / "b", SLOWER, data="sharegpt")
    write_load(tmp_path / "c", SLOWER, temperature=1.0)
    decisions = decide_on()
    assert [(d.workload.label, d.answer) for d in decisions] == [
        ("cnndm, temperature 0", Answer.ON),
        ("cnndm, temperature 1", Answer.OFF),
        ("sharegpt, temperature 0", Answer.OFF),
    ]
    words = headline(compose_cards(decisions, Requirements()))
    assert words == "Turn it on for 1 of 3 workloads; turn it off for 2"


def test_under_arrivals_latency_is_compared_and_throughput_is_not(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Both sides answer what comes, so that their throughput is the same."""
    write_load(tmp_path / "a", (1.0, 0.99, 1.01), qps=4.0, tpot_p99=(0.02, 0.01))
    (decision,) = decide_on()
    gain = decision.points[0].gain
    assert gain is not None
    assert gain.value == pytest.approx(2.0)
    assert decision.answer is Answer.ON


def test_a_limit_is_not_kept_by_a_side_that_falls_behind(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "a", UNCLEAR, qps=16.0, tpot_p99=(0.02, 0.01), overloaded=("method",))
    assert decide_on(Requirements(tpot=0.015))[0].points[0].outcome is Outcome.UNCLEAR


def test_an_overloaded_point_without_any_figure_stays_and_is_unclear(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_load(tmp_path / "low", (1.0, 0.99, 1.01), qps=0.5, fixed={2: 1.1})
    folder = write_load(
        tmp_path / "high", (1.0, 0.9, 1.1), qps=16.0, overloaded=("baseline",), answered=False
    )
    results = json.loads((folder / "results.json").read_text())
    results["comparisons"]["method"]["gain"] = None
    (folder / "results.json").write_text(json.dumps(results))
    (decision,) = decide_on()
    assert [point.outcome for point in decision.points] == [Outcome.FASTER, Outcome.UNCLEAR]
    assert explain(decision, Requirements()).table.rows[1][1:4] == [
        "-",
        "cannot tell (overloaded)",
        "-",
    ]


def test_without_an_interval_no_limit_decides(tmp_path: Path, decide_on: Decide) -> None:
    for tpot_p99 in ((0.049, 0.051), (0.06, 0.04)):
        gain: Any = (0.6, None, None)
        write_run(tmp_path / "a", gain, batch_size=8, tpot_p99=tpot_p99)
        assert decide_on(Requirements(tpot=0.05))[0].points[0].outcome is Outcome.UNCLEAR


def test_a_side_that_falls_behind_is_not_recommended(tmp_path: Path, decide_on: Decide) -> None:
    """Its gain is a ratio of throughputs, the other's of latencies."""
    for name, gain, overloaded in (("a", SLOWER, ()), ("b", (0.97, 0.95, 0.99), ("method",))):
        write_load(
            tmp_path / name,
            gain,
            qps=16.0,
            tpot_p99=(0.01, 0.0125),
            overloaded=overloaded,
            method=name,
        )
    (decision,) = decide_on()
    assert decision.setting.method == "a"
