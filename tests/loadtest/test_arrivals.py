from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from specresearch.loadtest.arrivals import Arrivals, ClosedLoop, Constant, Gamma, Poisson, Replay

NUM = 4000


def gaps(arrivals: Arrivals, seed: int = 0) -> np.ndarray:
    return np.diff(arrivals.times(NUM, seed), prepend=0.0)


@pytest.mark.parametrize(
    ("arrivals", "cv"), [(Poisson(5.0), 1.0), (Gamma(5.0, 3.0), 3.0), (Gamma(5.0, 0.5), 0.5)]
)
def test_random_gaps_have_the_rate_and_the_spread_that_were_asked_for(
    arrivals: Arrivals, cv: float
) -> None:
    found = gaps(arrivals)
    assert found.mean() == pytest.approx(1 / 5, rel=4 * cv / NUM**0.5)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.15)


def test_poisson_gaps_are_exponential_and_bursty_ones_are_not() -> None:
    assert stats.kstest(gaps(Poisson(5.0)), "expon", args=(0, 1 / 5)).pvalue > 0.01
    assert stats.kstest(gaps(Gamma(5.0, 1.0)), "expon", args=(0, 1 / 5)).pvalue > 0.01
    assert stats.kstest(gaps(Gamma(5.0, 1.5)), "expon", args=(0, 1 / 5)).pvalue < 1e-6


@pytest.mark.parametrize("arrivals", [Poisson(5.0), Gamma(5.0)])
def test_a_seed_fixes_the_times(arrivals: Arrivals) -> None:
    assert (gaps(arrivals, 1) == gaps(arrivals, 1)).all()
    assert (gaps(arrivals, 1) != gaps(arrivals, 2)).any()


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert Constant(4.0).times(3, 0).tolist() == [0.0, 0.25, 0.5]


def test_a_replay_is_the_stretch_that_was_asked_for_in_its_own_time(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        "".join(
            f'{{"timestamp": {1000 * i}, "input_length": {i + 1}, "output_length": 2}}\n'
            for i in range(9)
        )
    )
    replay = Replay(str(file), time_scale=3.0, start=2.0, duration=4.0)
    assert [row.num_prompt_tokens for row in replay.rows or ()] == [3, 4, 5, 6]
    assert replay.times(4, 0).tolist() == [0.0, 3.0, 6.0, 9.0]
    assert replay.describe()["qps"] == pytest.approx(1 / 3)
    with pytest.raises(
        ValueError, match=r"no request between second 20 and second inf; it lasts 8 seconds"
    ):
        Replay(str(file), start=20.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(0.0), "arrivals.qps=0.0 must be above 0"),
        (lambda: Constant(float("nan")), "arrivals.qps=nan must be above 0"),
        (lambda: Gamma(1.0, -1.0), "arrivals.cv=-1.0 must be above 0"),
        (lambda: ClosedLoop(0), "arrivals.concurrency=0 must be a whole number from 1"),
        (lambda: Replay("x.csv", time_scale=0.0), "arrivals.time_scale=0.0 must be above 0"),
        (lambda: Replay("x.csv", duration=-1.0), "need start >= 0 and duration > 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        make()  # type: ignore[operator]
