"""Who pays for a faster median."""

from pathlib import Path

import pytest

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import ClassChange
from specresearch.reporting.tails import class_change
from tests.reporting.decisions import FASTER, SLOWER, Decide, finding_of
from tests.reporting.folders import Interval, write_load


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
        "At 8 requests at a time: hidden faster at the median and slower among its slowest "
        "requests (0.80, no interval; 1.30, no interval); other no clear change "
        "(0.80, no interval; 0.90, no interval)."
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
