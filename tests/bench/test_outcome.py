import pytest

from specresearch.bench.estimate import Estimate
from specresearch.bench.outcome import Outcome, describe_gain, describe_interval


@pytest.mark.parametrize(
    ("gain", "outcome", "words"),
    [
        (
            Estimate(1.34, 1.2, 1.5),
            Outcome.FASTER,
            "1.34x the speed of plain decoding (95% interval 1.20 to 1.50)",
        ),
        (
            Estimate(0.46, 0.42, 0.51),
            Outcome.SLOWER,
            "0.46x the speed of plain decoding, SLOWER (95% interval 0.42 to 0.51)",
        ),
        (
            Estimate(0.98, 0.94, 1.03),
            Outcome.UNCLEAR,
            "no measurable difference from plain decoding (0.98x the speed, 95% interval 0.94 to "
            "1.03)",
        ),
        (
            Estimate(0.45),
            Outcome.UNCLEAR,
            "0.45x the speed of plain decoding, too few prompts for an interval: measure more",
        ),
        (
            Estimate(0.97, 0.94, 0.9996),
            Outcome.SLOWER,
            "0.97x the speed of plain decoding, SLOWER (95% interval 0.940 to 1.000)",
        ),
    ],
)
def test_the_whole_interval_decides_the_verdict(
    gain: Estimate, outcome: Outcome, words: str
) -> None:
    assert Outcome.of(gain) is outcome
    assert describe_gain(gain) == words


def test_a_speedup_must_be_worth_having() -> None:
    gain = Estimate(1.34, 1.2, 1.5)
    assert Outcome.of(gain, worth=1.3) is Outcome.UNCLEAR
    assert Outcome.of(gain, worth=1.6) is Outcome.SLOWER
    assert Outcome.of(None) is Outcome.UNCLEAR


def test_what_is_compared_and_counted_is_named() -> None:
    words = describe_gain(Estimate(1.1), "throughput", "requests")
    assert words.startswith("1.10x the throughput of plain decoding, too few requests")


def test_two_sides_that_decode_plainly_are_not_compared() -> None:
    words = describe_gain(Estimate(0.99, 0.98, 0.995), has_drafts=False)
    assert words == (
        "nothing was drafted, so both sides decoded plainly (0.99x the speed, 95% interval 0.98 to "
        "0.99)"
    )
    assert "too few prompts" in describe_gain(Estimate(0.99), has_drafts=False)


def test_an_end_next_to_1_is_not_rounded_to_1() -> None:
    assert describe_interval(Estimate(1.1, 1.003, 1.2)) == "1.003 to 1.200"
    assert describe_interval(Estimate(1.1, 1.02, 1.2), "-") == "1.02-1.20"
    assert describe_interval(Estimate(1.1)) == describe_interval(None) == "-"
