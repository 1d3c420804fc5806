"""What a decision rests on and what to do about it."""

from pathlib import Path

import pytest

from specresearch.reporting import Requirements
from specresearch.reporting.decision import Answer
from specresearch.reporting.recommendation import explain
from tests.reporting.decisions import FASTER, Decide, finding_of
from tests.reporting.folders import write_load, write_run


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
        proposer = {"num_draft_tokens": 5}
        write_load(tmp_path / "a", FASTER, controller="fixed", proposer=proposer)
    else:
        write_run(tmp_path / "a", FASTER, batch_size=8)
    finding = finding_of(decide_on()[0], "Draft length")
    assert finding is not None
    assert finding.lines == ("5, the only one measured.", "To compare others:")
    assert ("'compare=[1,2]'" in finding.command) == is_load
    assert ("proposer.num_draft_tokens=2,10" in finding.command) != is_load


def test_the_draft_length_of_a_tree_is_not_asked_for(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", FASTER, batch_size=8, trees=True)
    assert finding_of(decide_on()[0], "Draft length") is None


def test_wrong_output_has_no_next_measurement(tmp_path: Path, decide_on: Decide) -> None:
    write_run(tmp_path / "a", FASTER)
    write_run(tmp_path / "b", FASTER, batch_size=8, num_outputs_equal=199)
    (decision,) = decide_on()
    assert decision.answer is Answer.OFF
    assert finding_of(decision, "Next") is None
