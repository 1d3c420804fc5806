"""Headlines and reasons."""

from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements
from specresearch.reporting.comparison import Outcome, Standing
from specresearch.reporting.decision import Answer
from specresearch.reporting.recommendation import explain, headline
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
            "Measure more: no difference from plain decoding can be told yet",
        ),
        ([FASTER], Answer.MEASURE, "Measure under load before turning it on"),
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
    assert headline([verdict]).startswith(words)


@pytest.mark.parametrize(
    ("gains", "settings", "limits", "words"),
    [
        (
            [FASTER],
            {"tpot_p99": (0.045, 0.0502)},
            Requirements(tpot=0.05),
            "may break a limit that plain decoding keeps (TPOT P99)",
        ),
        (
            [FASTER],
            {"tpot_p99": (0.045, 0.0498)},
            Requirements(tpot=0.05),
            "may break a limit that plain decoding keeps (TPOT P99)",
        ),
        ([(1.1, 1.05, 1.15)], {}, Requirements(worth=1.2), "below 1.2, the least worth having, at"),
        ([(0.8, 0.7, 0.9)], {}, Requirements(worth=1.2), "slower than plain decoding, at"),
        (
            [(1.2, 1.1, 1.3)],
            {},
            Requirements(worth=1.2),
            "on which side of 1.2 it lies. More prompts",
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
    assert "breaks a limit that plain decoding keeps (TPOT P99) at 1 request at a time." in reason
    assert (
        "It is only 0.80 times as fast (95% interval 0.68 to 0.92), slower than plain decoding, at"
        in reason
    )


def test_the_best_measured_keeps_the_limits(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", (1.2, 1.1, 1.3), batch_size=8)
    write_run(tmp_path / "b", (9.0, 8.0, 9.9), batch_size=8, length=8, num_outputs_equal=199)
    verdict = explain(decide_on()[0], Requirements())
    assert verdict.table.rows[0][3] == "this setting"


def test_a_workload_under_two_kinds_of_load_is_one_workload(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_load(tmp_path / "closed", FASTER)
    write_load(tmp_path / "open", qps=4.0)
    words = [explain(decision, Requirements()) for decision in decide_on()]
    assert headline(words) == "Turn it on: at every kind of load measured"
    write_load(tmp_path / "open", qps=4.0, tpot_p99=(0.01, 0.02))
    words = [explain(decision, Requirements()) for decision in decide_on()]
    assert (
        headline(words)
        == "It depends on the kind of load: turn it on in 1 of 2 cases and turn it off in 1 of 2 "
        "cases"
    )
    write_load(tmp_path / "other", FASTER, data="sharegpt")
    words = [explain(decision, Requirements()) for decision in decide_on()]
    assert headline(words).startswith(
        "It depends on the workload and the kind of load: turn it on in 2 of 3 cases"
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
        "not compared at 16 requests per second, where neither side keeps up"
        in findings["Your limits"][0]
    )
    assert "Slowest requests" not in findings
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
        assert "plain decoding could not answer 16" in findings["Keeping up"][0]
        assert findings["Crosses over"][0].startswith(
            {
                Outcome.FASTER: "not up to 16 requests per second, the highest load measured",
                Outcome.SLOWER: "between 4 and 16 requests per second",
                Outcome.UNCLEAR: "not up to 4 requests per second; above that it cannot "
                "be told (16: 1.00, 0.74 to 1.28)",
            }[outcome]
        )
