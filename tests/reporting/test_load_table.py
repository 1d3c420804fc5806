"""The table of experiments/load holds each finished run once and counts over all of them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from experiments.load import table


def write_run(
    folder: Path,
    *,
    over_best: float,
    concurrency: int,
    complete: bool = True,
    bounded: bool = True,
) -> None:
    """Write what the table reads of a run of n-gram on articles."""
    run = folder / f"cnndm-{concurrency}" / "ngram-temperature0"
    run.mkdir(parents=True)
    speeds = {"baseline": 1.0, "method": 1.6, "fixed-1": 0.9, "fixed-5": 1.5, "bounded": 1.2}
    sides = {
        name: {
            "throughput": 50 * speed,
            "tpot_p99": 0.02 * speed,
            "schedule_share": 0.002,
            "mean_draft_length": 5.0,
        }
        for name, speed in speeds.items()
    }
    summary = {
        "best_fixed": "fixed-5",
        "speedup": 1.6,
        "speedup_bounded": 1.2,
        "speedup_over_best": over_best,
        "speedup_over_best_bounded": 0.8,
        "tpot_p50_ratio": 0.7,
        "tpot_p99_ratio": 1.6,
        "outputs_equal": True,
    }
    if not bounded:
        sides.pop("bounded")
        summary = {name: value for name, value in summary.items() if "bounded" not in name}
    results = {
        "complete": complete,
        "summary": summary,
        "intervals": {"speedup_over_best": [over_best - 0.02, over_best + 0.02]},
        "sides": sides,
        "provenance": {"git_commit": "abcdef0123", "started": "2026-11-29T08:00:00+00:00"},
    }
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


@pytest.fixture
def make_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], tuple[pd.DataFrame, str]]:
    written = tmp_path / "written"
    written.mkdir()

    def make(runs: Path) -> tuple[pd.DataFrame, str]:
        monkeypatch.setattr(sys, "argv", ["table.py", str(runs), "--to", str(written)])
        table.main()
        assert (written / "speedups.png").stat().st_size > 0
        return pd.read_csv(written / "results.csv"), capsys.readouterr().out

    return make


def test_ratios_are_over_plain_decoding(
    tmp_path: Path, make_table: Callable[[Path], tuple[pd.DataFrame, str]]
) -> None:
    write_run(tmp_path / "runs", over_best=1.07, concurrency=8)
    rows, printed = make_table(tmp_path / "runs")
    row = rows.iloc[0]
    assert row[["proposer", "dataset"]].tolist() == ["ngram", "cnndm"]
    assert row[["concurrency", "fixed-1", "fixed-5", "best"]].tolist() == [8, 0.9, 1.5, "fixed-5"]
    assert row[["tpot_p99_ratio_bounded", "worst_tpot_p99_ratio_fixed"]].tolist() == [1.2, 1.5]
    assert row[["commit", "day"]].astype(str).tolist() == ["abcdef0", "2026-11-29"]
    assert "| ngram, cnndm, 0: fixed | 0.90 to 1.50 |" in printed
    assert "| ngram, cnndm, 0: goodput | 1.60; 1.07 (1.05 to 1.09); 1.60 |" in printed
    assert "| ngram, cnndm, 0: bounded | 1.20; 0.80 (no interval); 1.20 |" in printed


def test_all_cells_are_counted_together(
    tmp_path: Path, make_table: Callable[[Path], tuple[pd.DataFrame, str]]
) -> None:
    for over_best, concurrency in ((0.90, 1), (0.96, 8), (1.02, 32)):
        write_run(tmp_path / "runs", over_best=over_best, concurrency=concurrency)
    printed = make_table(tmp_path / "runs")[1]
    assert "3 cells; some fixed length is slower than plain decoding in 3" in printed
    assert "goodput: 0.960 of the best on average, 0.900 at least, 0.97 or more in 1, " in printed
    assert "the whole interval below that in 1; of plain decoding 1.600 at least" in printed
    assert "P99 at most 1.05 in 0, 1.60 at worst" in printed


def test_runs_without_a_bound_have_no_line_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", over_best=1.07, concurrency=8, bounded=False)
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path / "runs"), "--to", str(tmp_path)])
    table.main()
    printed = capsys.readouterr().out
    assert "| ngram, cnndm, 0: goodput | 1.60; 1.07 (1.05 to 1.09); 1.60 |" in printed
    assert "goodput: 1.070 of the best on average" in printed
    assert "bounded" not in printed
    assert (tmp_path / "results.csv").exists()


def test_an_interrupted_run_is_left_out(
    tmp_path: Path, make_table: Callable[[Path], tuple[pd.DataFrame, str]]
) -> None:
    write_run(tmp_path / "runs", over_best=1.0, concurrency=1)
    write_run(tmp_path / "runs", over_best=1.0, concurrency=8, complete=False)
    assert make_table(tmp_path / "runs")[0]["concurrency"].tolist() == [1]


def test_a_folder_without_finished_runs_is_an_error(
    tmp_path: Path, make_table: Callable[[Path], tuple[pd.DataFrame, str]]
) -> None:
    write_run(tmp_path / "runs", over_best=1.0, concurrency=1, complete=False)
    with pytest.raises(SystemExit, match="no finished runs"):
        make_table(tmp_path / "runs")
