"""What a decision rests on and what to do about it."""

from pathlib import Path

import pytest

from specresearch.reporting import Requirements
from specresearch.reporting.decision import Answer
from specresearch.reporting.recommendation import explain
from specresearch.reporting.workload import Load
from tests.reporting.decisions import FASTER, SLOWER, UNCLEAR, Decide, finding_of, write_loads
from tests.reporting.folders import Interval, write_load, write_run


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


def test_unchanged_outputs_of_all_loads_are_one_sum(tmp_path: Path, decide_on: Decide) -> None:
    def output_line() -> str:
        return next(
            finding.lines[0]
            for finding in explain(decide_on()[0], Requirements()).findings
            if finding.term == "Output"
        )

    for batch_size in (1, 2, 4):
        write_run(tmp_path / str(batch_size), FASTER, batch_size=batch_size)
    assert (
        output_line()
        == "unchanged: 600 of 600 greedy outputs equal plain decoding's token for token"
    )
    tie = {"num_outputs_equal": 199, "num_rounding_ties": 1, "output_statement": "one tie"}
    write_run(tmp_path / "4", FASTER, batch_size=4, **tie)
    assert output_line().endswith(
        ": 400 of 400 greedy outputs equal plain decoding's token for token; one tie"
    )


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
            "below 4 requests at a time, if anywhere; there it cannot be told "
            "(1: 1.02, 0.88 to 1.18)",
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
