"""The statement on the outputs of all sides: a correct side never hides a wrong one."""

from specresearch.bench.logit_gap import LogitGap
from specresearch.bench.output_check import CHANGED, OutputScores
from specresearch.bench.outputs import Difference, OutputComparison
from specresearch.loadtest.outputs import SideOutputs, check_sampled, combined_figures, scores_of
from specresearch.loadtest.rows import PassRow
from tests.loadtest.load_rows import finished, request

EQUAL = OutputComparison("output unchanged", 4, 4)
TIE = Difference(0, "1", 2, 5, 6, LogitGap(0.0, 1.0, "float32", is_rounding=True))
TIED = OutputComparison("OUTPUT CHANGED: a tie", 4, 3, (TIE,))
ERROR = Difference(0, "1", 2, 5, 6, LogitGap(1.0, 1.0, "float32", is_rounding=False))
CHANGED_GREEDY = OutputComparison("OUTPUT CHANGED: an error", 4, 3, (ERROR,))


def scores(excess: float) -> OutputScores:
    """Of 100 tokens, independent scores of variance 1."""
    return OutputScores(
        100, 0, (excess, 0.0, 0.0), (100.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0, 0.0, 100.0)
    )


def passed(side: str, repeat: int, found: OutputScores | None) -> PassRow:
    place = finished([request(0, 0.0, side=side, repeat=repeat)])
    return PassRow.from_json(place.to_json() | {"scores": found and found.__dict__})


def check(excess: float, plain: float = 0.0) -> OutputComparison:
    passes = [passed("method", 0, scores(excess)), passed("baseline", 0, scores(plain))]
    return check_sampled(passes, "method", "rejection", lossless=True)


def test_scores_of_all_passes_of_a_side_are_added_up() -> None:
    passes = [passed("method", r, scores(20.0)) for r in range(2)] + [
        passed("baseline", 0, scores(1.0))
    ]
    found = scores_of(passes, "method")
    assert found is not None
    assert (found.num_tokens, found.excess[0]) == (200, 40.0)
    assert scores_of([*passes, passed("method", 2, None)], "method") is None
    assert scores_of(passes, "fixed-2") is None


def test_a_sampled_side_that_is_wrong_is_told_first() -> None:
    sides = {
        "method": SideOutputs(EQUAL, check(1.0)),
        "fixed-1": SideOutputs(TIED, check(2.0)),
        "fixed-2": SideOutputs(EQUAL, check(90.0)),
    }
    told = combined_figures(sides)
    assert told["outputs_equal_but_for_ties"] is True
    assert told["output_statement"].startswith(
        "fixed-2: OUTPUT DISTRIBUTION CHANGED: log p is +9.0 standard deviations"
    )
    assert told["output_statement"].endswith("; output unchanged")
    assert told["output_p_value"] == sides["fixed-2"].figures["output_p_value"] < CHANGED
    assert sides["fixed-2"].figures["num_outputs_equal"] == 4
    assert [side.is_wrong for side in sides.values()] == [False, False, True]


def test_plain_decoding_is_the_control() -> None:
    told = combined_figures({"method": SideOutputs(sampled=check(1.0, plain=90.0))})
    assert told["output_statement"].startswith("OUTPUT DISTRIBUTION CHANGED, BY PLAIN DECODING TOO")
    assert told["baseline_output_p_value"] < CHANGED < told["output_p_value"]
    assert told["outputs_equal"] is None


def test_greedy_sides_alone_are_told_as_ever() -> None:
    both = {"method": SideOutputs(EQUAL), "fixed-2": SideOutputs(EQUAL)}
    told = combined_figures(both)
    assert (
        told["output_statement"]
        == "output unchanged: 8 of 8 greedy outputs equal plain decoding's token for token"
    )
    assert (told["outputs_equal"], told["output_p_value"]) == (True, None)
    tied = combined_figures(both | {"fixed-2": SideOutputs(TIED)})
    assert tied["output_statement"] == "fixed-2: OUTPUT CHANGED: a tie"
    assert (tied["outputs_equal"], tied["outputs_equal_but_for_ties"]) == (False, True)
    wrong = combined_figures({"fixed-1": SideOutputs(TIED), "fixed-2": SideOutputs(CHANGED_GREEDY)})
    assert wrong["output_statement"] == "fixed-2: OUTPUT CHANGED: an error"
    assert wrong["outputs_equal_but_for_ties"] is False
    assert combined_figures({})["output_statement"].startswith("plain decoding only")
