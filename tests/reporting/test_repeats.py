"""The best of many settings looks faster than it is; repeated runs of a setting say more."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specresearch.bench.estimate import Estimate, paired_ratio
from specresearch.reporting import Requirements, gather
from specresearch.reporting.comparison import Comparison, Outcome
from specresearch.reporting.decision import Answer, decide, judge
from specresearch.reporting.estimates import pooled, simultaneous
from specresearch.reporting.workload import CONCURRENCY, Load, Setting, WorkloadKey
from tests.reporting.folders import write_run

NUM_REPORTS, NUM_SETTINGS, LOADS, NUM_GROUPS = 300, 8, (1, 4, 16), 24
ON = (Answer.ON, Answer.BELOW, Answer.SOME)
WORKLOAD = WorkloadKey("data", "temperature 0", 96, None, "target", "machine", 10**9)


def no_faster(rng: np.random.Generator) -> list[Comparison]:
    """Settings whose true speedup is 1 at every load."""
    found = []
    for length in range(1, NUM_SETTINGS + 1):
        for load in LOADS:
            seconds = rng.lognormal(0, 0.3, NUM_GROUPS)
            sides = [
                np.stack([np.ones(NUM_GROUPS), seconds * rng.lognormal(0, 0.2, NUM_GROUPS)], 1)
                for _ in range(2)
            ]
            gain = paired_ratio(sides[0], sides[1])
            comparison = Comparison(
                gain=gain,
                folder=Path("f"),
                workload=WORKLOAD,
                load=Load(CONCURRENCY, float(load)),
                setting=Setting("m", "fixed", length),
                num_requests=24,
            )
            found.append(comparison)
    return found


def test_where_nothing_is_faster_a_report_seldom_says_turn_it_on() -> None:
    rng, wrong, uncorrected = np.random.default_rng(0), 0, 0
    for _ in range(NUM_REPORTS):
        comparisons = no_faster(rng)
        (decision,) = decide(comparisons, Requirements())
        wrong += decision.answer in ON
        uncorrected += any(judge(c, Requirements()).outcome is Outcome.FASTER for c in comparisons)
    assert wrong <= 0.05 * NUM_REPORTS
    assert (
        uncorrected > 0.25 * NUM_REPORTS
    )  # what each interval on its own would have said of some setting


def test_a_setting_that_is_clearly_faster_is_found_among_many() -> None:
    comparisons = no_faster(np.random.default_rng(1))
    best = [
        replace(c, gain=Estimate(1.5, 1.4, 1.6, 20.0)) if c.setting.length == 3 else c
        for c in comparisons
    ]
    (decision,) = decide(best, Requirements())
    assert (decision.answer, decision.setting.length) == (Answer.ON, 3)
    (point, *_) = decision.points
    assert point.gain is not None
    assert point.gain.low is not None
    assert 1.2 < point.gain.low < 1.4
    assert point.num_compared == NUM_SETTINGS * len(LOADS)


def test_intervals_that_hold_together_are_wider_and_one_alone_is_not() -> None:
    gain = Estimate(1.5, 1.4, 1.6, 30.0)
    assert simultaneous(gain, 1) == gain
    wide, unknown = simultaneous(gain, 10), simultaneous(replace(gain, freedom=None), 10)
    assert wide.low is not None
    assert unknown.low is not None
    assert unknown.low < wide.low < 1.4
    assert simultaneous(Estimate(1.5), 10) == Estimate(1.5)


@pytest.mark.parametrize("same_units", [True, False])
def test_pooling(same_units: bool) -> None:
    runs = [Estimate(1.2, 1.0, 1.44, 10.0), Estimate(1.2, 1.0, 1.44, 12.0)]
    both = pooled(runs, [20, 20], same_units=same_units)
    assert (both.value, both.freedom) == (pytest.approx(1.2), 10.0)
    assert both.low == pytest.approx(1.0 if same_units else 1.2 ** (1 - 0.5**0.5))
    assert not pooled([Estimate(1.0), Estimate(4.0)], [1, 1], same_units=True).has_interval
    assert pooled([Estimate(1.0), Estimate(4.0)], [3, 1], same_units=True).value == pytest.approx(
        2**0.5
    )


def test_all_runs_of_a_setting_count(tmp_path: Path) -> None:
    for name, gain in (("a", (1.5, 1.4, 1.6)), ("b", (1.1, 0.9, 1.3))):
        write_run(tmp_path / name, gain, batch_size=8)
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    (point,) = decision.points
    assert point.gain is not None
    assert point.gain.value == pytest.approx((1.5 * 1.1) ** 0.5)
    assert point.num_requests == 400
    assert len(point.pooled_with) == 1


def test_a_run_too_short_for_an_interval_does_not_take_away_that_of_another(
    tmp_path: Path,
) -> None:
    short = write_run(tmp_path / "short", (1.4, None, None), batch_size=8)
    write_run(tmp_path / "long", (1.2, 1.1, 1.3), batch_size=8)
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    (point,) = decision.points
    assert point.gain is not None
    assert (point.gain.value, point.gain.low) == (pytest.approx(1.2), pytest.approx(1.1))
    assert decision.answer is Answer.ON
    assert short not in point.pooled_with


def test_one_run_with_wrong_output_is_enough(tmp_path: Path) -> None:
    write_run(tmp_path / "a", batch_size=8, num_outputs_equal=100)
    write_run(tmp_path / "b", batch_size=8)
    (decision,) = decide(gather([tmp_path]).comparisons, Requirements())
    assert decision.answer is Answer.OFF
