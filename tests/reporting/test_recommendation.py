"""Headlines and reasons."""

from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements
from specresearch.reporting.cards import compose_cards, headline
from specresearch.reporting.comparison import Outcome, Standing
from specresearch.reporting.decision import Answer
from specresearch.reporting.recommendation import explain
from tests.reporting.decisions import FASTER, SLOWER, UNCLEAR, Decide, write_loads
from tests.reporting.folders import Interval, write_load, write_run


@pytest.mark.parametrize(
    ("gains", "answer", "words"),
    [
        ([FASTER, FASTER], Answer.ON, "Turn it on"),
        ([FASTER, UNCLEAR], Answer.ON, "Turn it on"),
        (
            [FASTER, FASTER, UNCLEAR, SLOWER],
            Answer.BELOW,
            "Turn it on up to 4 requests at a time, off from 16",
        ),
        ([SLOWER, FASTER], Answer.SOME, "Turn it on at 4 requests at a time only"),
        ([SLOWER, UNCLEAR], Answer.OFF, "Turn it off"),
        (
            [UNCLEAR, UNCLEAR],
            Answer.MEASURE,
            "Measure more: it is too early to tell faster from slower",
        ),
        ([FASTER], Answer.MEASURE, "Measure under load before turning it on"),
        (
            [FASTER, (1.4, None, None)],
            Answer.MEASURE,
            "Measure more under load before turning it on",
        ),
    ],
)
def test_answers(
    tmp_path: Path, decide_on: Decide, gains: list[Interval], answer: Answer, words: str
) -> None:
    write_loads(tmp_path, gains)
    (decision,) = decide_on()
    assert decision.answer is answer
    verdict = explain(decision, Requirements())
    assert verdict.headline == words
    assert all(f"{gain[0]:.2f}" in str(verdict.table) for gain in gains)
    assert headline(compose_cards([decision], Requirements())).startswith(words)


@pytest.mark.parametrize(
    ("gains", "settings", "limits", "words"),
    [
        (
            [FASTER],
            {"tpot_p99": (0.045, 0.0502)},
            Requirements(tpot=0.05),
            "may break TPOT P99 at 4 requests at a time, 1.50 times as fast",
        ),
        (
            [FASTER],
            {"tpot_p99": (0.045, 0.0498)},
            Requirements(tpot=0.05),
            "may break TPOT P99 at 4 requests at a time, 1.50 times as fast",
        ),
        (
            [(1.1, 1.05, 1.15)],
            {},
            Requirements(worth=1.2),
            "below 1.2 at 4 requests at a time, 1.10 times as fast",
        ),
        (
            [(0.8, 0.7, 0.9)],
            {},
            Requirements(worth=1.2),
            "slower at 4 requests at a time, 0.80 times as fast",
        ),
        (
            [(1.2, 1.1, 1.3)],
            {},
            Requirements(worth=1.2),
            "cannot tell at 4 requests at a time, 1.20 times as fast",
        ),
    ],
)
def test_the_reason_is_the_one_that_decided(
    tmp_path: Path,
    decide_on: Decide,
    gains: list[Interval],
    settings: dict[str, Any],
    limits: Requirements,
    words: str,
) -> None:
    write_load(tmp_path / "a", gains[0], **settings)
    verdict = explain(decide_on(limits)[0], limits)
    assert words in verdict.reason
    assert ("a limit may be broken" in verdict.headline) == ("may break" in words)


def test_a_broken_limit_is_told_apart_from_a_loss(tmp_path: Path, decide_on: Decide) -> None:
    write_load(tmp_path / "1", (1.3, 1.2, 1.4), concurrency=1, tpot_p99=(0.01, 0.02))
    write_load(tmp_path / "4", SLOWER, concurrency=4)
    limits = Requirements(tpot=0.015)
    reason = explain(decide_on(limits)[0], limits).reason
    assert "breaks TPOT P99 at 1 request at a time, 1.30 times as fast" in reason
    assert (
        "slower at 4 requests at a time, 0.80 times as fast (95% interval 0.68 to 0.92)" in reason
    )


def test_the_best_measured_keeps_the_limits(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", (1.2, 1.1, 1.3), batch_size=8)
    write_run(tmp_path / "b", (9.0, 8.0, 9.9), batch_size=8, length=8, num_outputs_equal=199)
    verdict = explain(decide_on()[0], Requirements())
    assert "Best there" not in verdict.table.header


def test_a_workload_under_two_kinds_of_load_is_one_workload(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_load(tmp_path / "closed", FASTER)
    write_load(tmp_path / "open", qps=4.0)
    assert headline(compose_cards(decide_on(), Requirements())) == (
        "Turn it on at every kind of load measured"
    )
    write_load(tmp_path / "open", qps=4.0, tpot_p99=(0.01, 0.02))
    assert headline(compose_cards(decide_on(), Requirements())) == (
        "It depends on the kind of load: turn it on for requests in flight and turn it off for "
        "poisson arrivals"
    )
    write_load(tmp_path / "other", FASTER, data="sharegpt")
    assert headline(compose_cards(decide_on(), Requirements())) == (
        "Turn it on for 1 of 2 workloads; it depends on the kind of load for 1"
    )


def test_where_neither_side_keeps_up_survivors_are_not_compared(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Their latencies would say that the method breaks a limit that plain decoding keeps."""
    load: dict[str, Any] = {"qps": 16.0, "tpot_p99": (0.01, 0.02)}
    limits = Requirements(tpot=0.015)
    write_load(tmp_path / "a", FASTER, overloaded=("baseline", "method"), **load)
    (decision,) = decide_on(limits)
    assert decision.answer is Answer.ON
    assert decision.points[0].standings == {}
    verdict = explain(decision, limits)
    findings = {finding.term: finding.lines for finding in verdict.findings}
    assert (
        "not compared, since neither side keeps up, at 16 requests per second"
        in findings["Your limits"][0]
    )
    assert verdict.table.rows[0][-1] == "-"
    write_load(tmp_path / "a", FASTER, overloaded=("baseline",), **load)
    assert decide_on(limits)[0].points[0].standings == {"tpot_p99": Standing.BROKEN}


def test_a_load_that_is_too_much_for_plain_decoding_is_decided_by_throughput(
    tmp_path: Path, decide_on: Decide
) -> None:
    """At the highest load plain decoding answered nothing that counts: no latencies to divide."""
    write_load(tmp_path / "low", (1.0, 0.99, 1.01), qps=0.5)
    write_load(tmp_path / "mid", (1.0, 0.99, 1.01), qps=4.0)
    high = {
        "qps": 16.0,
        "overloaded": ("baseline",),
        "answered": False,
        "stopped": "plain, repeat 0: the queue grows",
    }
    for gain, outcome, words in (
        ((1.4, 1.3, 1.5), Outcome.FASTER, "faster (overloaded)"),
        ((0.8, 0.7, 0.9), Outcome.SLOWER, "slower (overloaded)"),
        ((1.0, 0.8, 1.2), Outcome.UNCLEAR, "cannot tell (overloaded)"),
    ):
        write_load(tmp_path / "high", gain, **high)
        (decision,) = decide_on()
        point = decision.points[-1]
        assert (point.load.amount, point.outcome) == (16.0, outcome)
        assert explain(decision, Requirements()).table.rows[-1][2] == words
        assert [p.basis for p in decision.points] == [
            "latency",
            "latency",
            "throughput",
        ]
        findings = {
            finding.term: finding.lines for finding in explain(decision, Requirements()).findings
        }
        assert "plain decoding could not keep up with 16" in findings["Keeping up"][0]


@pytest.mark.parametrize(
    ("gain", "words"), [(0.45, "Slower so far; measure more"), (1.8, "Faster so far; measure more")]
)
def test_too_little_measured_for_an_interval_still_says_which_way_it_points(
    tmp_path: Path, decide_on: Decide, gain: float, words: str
) -> None:
    write_run(tmp_path / "a", (gain, None, None))  # type: ignore[arg-type]
    verdict = explain(decide_on()[0], Requirements())
    assert verdict.headline == words
    leaning = words.partition(";")[0].lower()
    assert verdict.table.rows[0][2] == leaning
    assert f"{leaning} at batch size 1, {gain:.2f} times as fast" in verdict.reason


@pytest.mark.parametrize(
    ("gain", "limits", "words"),
    [
        ((1.1, 1.05, 1.15), Requirements(worth=1.2), "below 1.2"),
        ((0.9, 0.85, 0.95), Requirements(worth=0.8), "above 0.8"),
        ((1.02, 0.9, 1.15), Requirements(tpot=0.015), "keeps TPOT P99"),
        ((1.02, 0.9, 1.15), Requirements(), "cannot tell"),
        ((0.8, 0.7, 0.9), Requirements(), "slower"),
    ],
)
def test_faster_and_slower_are_said_only_of_intervals_on_one_side_of_1(
    tmp_path: Path, decide_on: Decide, gain: Interval, limits: Requirements, words: str
) -> None:
    write_load(tmp_path / "a", gain)
    verdict = explain(decide_on(limits)[0], limits)
    assert verdict.table.rows[0][2] == words
