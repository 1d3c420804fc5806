"""From intervals and limits to an answer, and which setting is recommended."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import ClassChange
from specresearch.reporting import Requirements, gather
from specresearch.reporting.comparison import Outcome, Standing
from specresearch.reporting.decision import Answer, Decision, decide
from specresearch.reporting.findings import Finding
from specresearch.reporting.recommendation import explain, headline
from specresearch.reporting.tails import class_change
from specresearch.reporting.workload import Load
from tests.reporting.folders import Interval, write_load, write_run

FASTER, SLOWER, UNCLEAR = (1.5, 1.4, 1.6), (0.8, 0.7, 0.9), (1.02, 0.9, 1.15)
Decide = Callable[..., list[Decision]]


@pytest.fixture
def decide_on(tmp_path: Path) -> Decide:
    def run(limits: Requirements | None = None) -> list[Decision]:
        return decide(gather([tmp_path]).comparisons, limits or Requirements())

    return run


def finding_of(decision: Decision, term: str) -> Finding | None:
    for finding in explain(decision, Requirements()).findings:
        if finding.term == term:
            return finding
    return None


def write_loads(folder: Path, gains: Sequence[Interval], **told: Any) -> None:
    for concurrency, gain in zip((1, 4, 8, 16), gains, strict=False):
        write_load(
            folder / f"{told.get('method', 'm')}{concurrency}",
            gain,
            concurrency=concurrency,
            **told,
        )


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


def test_the_crossover_lies_between_the_last_faster_and_the_first_slower_load(
    tmp_path: Path, decide_on: Decide
) -> None:
    write_loads(tmp_path, [FASTER, FASTER, UNCLEAR, SLOWER])
    (decision,) = decide_on()
    assert (decision.last_faster, decision.first_slower) == (
        Load("concurrency", 4.0),
        Load("concurrency", 16.0),
    )
    finding = finding_of(decision, "Crosses over")
    assert finding is not None
    assert finding.lines == (
        "between 4 and 16 requests at a time; in between it cannot be told (8: 1.02, 0.85 to 1.21)",
    )


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


def test_unchanged_outputs_of_all_loads_are_one_sum(tmp_path: Path, decide_on: Decide) -> None:
    def told() -> str:
        return next(
            finding.lines[0]
            for finding in explain(decide_on()[0], Requirements()).findings
            if finding.term == "Output"
        )

    for batch_size in (1, 2, 4):
        write_run(tmp_path / str(batch_size), FASTER, batch_size=batch_size)
    assert told() == "unchanged: 600 of 600 greedy outputs equal plain decoding's token for token"
    tie = {"num_outputs_equal": 199, "num_rounding_ties": 1, "output_statement": "one tie"}
    write_run(tmp_path / "4", FASTER, batch_size=4, **tie)
    assert told().endswith(
        ": 400 of 400 greedy outputs equal plain decoding's token for token; one tie"
    )


def test_the_setting_that_never_loses_much_is_recommended(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Five drafts win by a little at first and lose by much at last; the controller is never far from the best."""
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
    words = headline([explain(decision, Requirements()) for decision in decisions])
    assert words == "It depends on the workload: turn it on for 1 and turn it off for 2"


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


@pytest.mark.parametrize("told", [{"ttft": 0.0}, {"tpot": -1.0}, {"worth": float("inf")}])
def test_absurd_limits_are_refused(told: dict[str, Any]) -> None:
    (name,) = told
    with pytest.raises(ValueError, match=f"--{name}="):
        Requirements(**told)


def test_limits_of_load_runs_hold_where_the_user_names_none() -> None:
    runs = [{"ttft": 0.5, "tpot": 0.05}]
    assert Requirements(tpot=None, percentile=99).or_limits_of(runs).limits == {
        "ttft_p99": 0.5,
        "tpot_p99": 0.05,
    }
    assert Requirements(tpot=0.1, percentile=50).or_limits_of(runs).limits == {"tpot_p50": 0.1}
    assert (
        Requirements(tpot=None, percentile=99)
        .or_limits_of([*runs, {"ttft": 1.0, "tpot": 0.1}])
        .limits
        == {}
    )


def test_a_load_that_is_too_much_for_plain_decoding_is_decided_by_throughput(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Plain decoding answered nothing that counts at the highest load, so that there are no latencies to divide."""
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
        told = {
            finding.term: finding.lines for finding in explain(decision, Requirements()).findings
        }
        assert "plain decoding could not answer 16" in told["Keeping up"][0]
        assert told["Crosses over"][0].startswith(
            {
                Outcome.FASTER: "not up to 16 requests per second, the highest load measured",
                Outcome.SLOWER: "between 4 and 16 requests per second",
                Outcome.UNCLEAR: "not up to 4 requests per second; above that it cannot be told (16: 1.00, 0.74 to 1.28)",
            }[outcome]
        )


def test_where_neither_side_keeps_up_survivors_are_not_compared(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Their latencies would say that the method breaks a limit that plain decoding keeps."""
    told: dict[str, Any] = {"qps": 16.0, "tpot_p99": (0.01, 0.02)}
    limits = Requirements(tpot=0.015)
    write_load(tmp_path / "a", FASTER, overloaded=("baseline", "method"), **told)
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
    write_load(tmp_path / "a", FASTER, overloaded=("baseline",), **told)
    assert decide_on(limits)[0].points[0].standings == {"tpot_p99": Standing.BROKEN}


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


@pytest.mark.parametrize("is_load", [True, False])
def test_other_lengths_are_asked_for_as_the_program_takes_them(
    tmp_path: Path, decide_on: Decide, is_load: bool
) -> None:
    if is_load:
        write_load(tmp_path / "a", FASTER, controller="fixed", bound=5)
    else:
        write_run(tmp_path / "a", FASTER, batch_size=8)
    finding = finding_of(decide_on()[0], "Draft length")
    assert finding is not None
    assert finding.lines == ("5, the only one measured. To compare others, add",)
    assert finding.command == (
        '"compare=[2,4,8]"' if is_load else "-m proposer.num_draft_tokens=2,4,8"
    )


def test_classes_that_pay_for_the_others_are_named(tmp_path: Path, decide_on: Decide) -> None:
    figures = {"tpot_p50": 0.010, "tpot_p99": 0.010}
    classes = {
        name: {"baseline": figures, "method": {"tpot_p50": 0.01 * p50, "tpot_p99": 0.01 * p99}}
        for name, (p50, p99) in {"hidden": (0.8, 1.3), "other": (0.8, 0.9)}.items()
    }
    write_load(tmp_path / "a", FASTER, concurrency=8, classes=classes, class_signature=["hidden"])
    finding = finding_of(decide_on()[0], "Who pays")
    assert finding is not None
    assert finding.lines[1] == (
        "At 8 requests at a time: hidden faster at the median and slower among its slowest requests (0.80, no interval; 1.30, no "
        "interval); other no clear change (0.80, no interval; 0.90, no interval)."
    )
    write_load(tmp_path / "a", FASTER, concurrency=8)
    assert finding_of(decide_on()[0], "Who pays") is None


@pytest.mark.parametrize(
    ("median", "slowest", "signature", "says"),
    [
        ((0.8, 0.7, 0.9), (0.9, 0.8, 0.95), False, "faster"),
        ((1.1, 1.05, 1.2), (1.3, 0.9, 1.5), False, "slower"),
        (
            (0.8, 0.7, 0.9),
            (1.3, 1.1, 1.5),
            True,
            "faster at the median and slower among its slowest requests",
        ),
        (
            (1.2, 1.1, 1.3),
            (0.8, 0.7, 0.9),
            False,
            "slower at the median and faster among its slowest requests",
        ),
        ((0.9, 0.7, 1.1), (1.1, None, None), None, "no clear change"),
    ],
)
def test_a_class_is_judged_by_its_intervals(
    median: Interval, slowest: Interval, signature: bool | None, says: str
) -> None:
    change = ClassChange("a", Estimate(*median), Estimate(*slowest), signature)
    clause = class_change(change)
    assert clause.startswith(f"a {says} ({median[0]:.2f}, ")


def test_who_pays_is_told_of_the_recommended_side(tmp_path: Path, decide_on: Decide) -> None:
    names = ("baseline", "method", "fixed-2")
    classes = {
        name: {
            side: {"tpot_p50": value, "tpot_p99": value}
            for side, value in zip(names, (0.01, 0.02, 0.008), strict=True)
        }
        for name in ("a", "b")
    }
    write_load(tmp_path / "a", SLOWER, concurrency=8, fixed={2: 2.0}, classes=classes)
    (decision,) = decide_on()
    assert decision.setting.length == 2
    finding = finding_of(decision, "Who pays")
    assert finding is not None
    assert "a no clear change (0.80, no interval; 0.80, no interval)" in finding.lines[1]


@pytest.mark.parametrize(
    ("gains", "told", "limits", "words"),
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
    told: dict[str, Any],
    limits: Requirements,
    words: str,
) -> None:
    write_load(tmp_path / "a", gains[0], **told)
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
        "It is only 0.80 times as fast (95% interval 0.68 to 0.92), slower than plain decoding, at 4"
        in reason
    )


def test_without_an_interval_no_limit_decides(tmp_path: Path, decide_on: Decide) -> None:
    for tpot_p99 in ((0.049, 0.051), (0.06, 0.04)):
        write_run(tmp_path / "a", (0.6, None, None), batch_size=8, tpot_p99=tpot_p99)  # type: ignore[arg-type]
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


def test_the_best_measured_keeps_the_limits(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", (1.2, 1.1, 1.3), batch_size=8)
    write_run(tmp_path / "b", (9.0, 8.0, 9.9), batch_size=8, length=8, num_outputs_equal=199)
    verdict = explain(decide_on()[0], Requirements())
    assert verdict.table.rows[0][3] == "this setting"


def test_wrong_output_somewhere_is_no_crossover(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", FASTER)
    write_run(tmp_path / "b", FASTER, batch_size=8, num_outputs_equal=199)
    (decision,) = decide_on()
    assert decision.answer is Answer.OFF
    assert finding_of(decision, "Crosses over") is None


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        (
            [UNCLEAR, SLOWER],
            "below 4 requests at a time, if anywhere; there it cannot be told (1: 1.02, 0.88 to 1.18)",
        ),
        ([SLOWER, UNCLEAR], "nowhere: it does not pay at 1 request at a time already"),
    ],
)
def test_a_setting_that_is_off_crosses_over_below_its_first_loss(
    tmp_path: Path, decide_on: Decide, gains: list[Interval], words: str
) -> None:
    write_loads(tmp_path, gains)
    finding = finding_of(decide_on()[0], "Crosses over")
    assert finding is not None
    assert finding.lines == (words,)


def test_how_to_turns_on_what_is_recommended(tmp_path: Path, decide_on: Decide) -> None:
    for concurrency, gain in ((4, 1.5), (16, 0.8)):
        write_load(
            tmp_path / str(concurrency),
            (gain, gain - 0.1, gain + 0.1),
            concurrency=concurrency,
            controller="fixed",
        )
    finding = finding_of(decide_on()[0], "How to")
    assert finding is not None
    assert (
        finding.command
        == "controller=batch_size_cutoff controller.max_requests=4 controller.num_draft_tokens=10"
    )
    for concurrency, gain in ((4, 1.5), (16, 0.8)):
        write_load(
            tmp_path / str(concurrency), (gain, gain - 0.1, gain + 0.1), concurrency=concurrency
        )
    assert finding_of(decide_on()[0], "How to") is None


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
        == "It depends on the kind of load: turn it on in 1 of 2 cases and turn it off in 1 of 2 cases"
    )
    write_load(tmp_path / "other", FASTER, data="sharegpt")
    words = [explain(decision, Requirements()) for decision in decide_on()]
    assert headline(words).startswith(
        "It depends on the workload and the kind of load: turn it on in 2 of 3 cases"
    )
