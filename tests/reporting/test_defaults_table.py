"""The table of experiments/defaults replaces the cells that were measured, and no others."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from experiments.defaults import table
from specresearch.proposers.draft_shape import DraftShape

SHAPE = {
    "shape": asdict(DraftShape(3, "chain")),
    "predicted_speedup": 1.25,
    "acceptance_length": 2.0,
}


def write_run(folder: Path, *, speedup: float | None, commit: str, load: str = "8") -> None:
    """Write what the table reads of a run of n-gram on articles; None: it was interrupted."""
    run = folder / f"cnndm-{load}" / "ngram-temperature0"
    run.mkdir(parents=True, exist_ok=True)
    summary = {"speedup": speedup, "mean_acceptance_length": 2.2}
    interval = [speedup - 0.1, speedup + 0.1] if speedup else None
    provenance = {
        "method": {"shape": SHAPE},
        "git_commit": commit * 40,
        "started": "2026-11-28T10:00:00",
    }
    control = {} if load == "alone" else {"control": 1e-4}
    results = {
        "summary": summary,
        "intervals": {"speedup": {"ci95": interval} if load == "alone" else interval},
        "provenance": provenance,
        "step_times": {"method": {"parts": {"verify": 9.9e-3} | control}},
    }
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


@pytest.fixture
def make_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], pd.DataFrame]:
    written = tmp_path / "written"
    written.mkdir()
    monkeypatch.setattr(table, "HERE", written)

    def make(runs: Path) -> pd.DataFrame:
        monkeypatch.setattr(sys, "argv", ["table.py", str(runs)])
        table.main()
        assert (written / "speedups.png").stat().st_size > 0
        return pd.read_csv(written / "results.csv", dtype={"load": str}).set_index("load")

    return make


def test_a_run_replaces_its_own_cell(
    tmp_path: Path, make_table: Callable[[Path], pd.DataFrame]
) -> None:
    write_run(tmp_path / "first", speedup=1.2, commit="a", load="8")
    write_run(tmp_path / "first", speedup=1.5, commit="a", load="alone")
    make_table(tmp_path / "first")
    write_run(tmp_path / "again", speedup=1.25, commit="b", load="8")
    rows = make_table(tmp_path / "again")
    assert rows["speedup"].to_dict() == {"alone": 1.5, "8": 1.25}
    assert rows["commit"].to_dict() == {"alone": "a" * 7, "8": "b" * 7}
    assert rows.loc["8", ["low", "high"]].tolist() == pytest.approx([1.15, 1.35])
    assert rows["control"].to_dict() == pytest.approx({"alone": math.nan, "8": 0.01}, nan_ok=True)


def test_what_deciding_takes_is_also_told_of_the_steps_behind_the_first(tmp_path: Path) -> None:
    """Two passes; the baseline's steps do not count."""
    number = table.FIRST + table.FEWEST
    passes = [
        {"side": side, "repeat": repeat, "control": control, "total": 1.0}
        for side, late in (("baseline", 0.5), ("method", 0.01))
        for repeat in (0, 1)
        for control in [0.1] * table.FIRST + [late] * (number - table.FIRST)
    ]
    run = tmp_path / "cnndm-8" / "ngram-temperature0"
    run.mkdir(parents=True)
    pd.DataFrame(passes).to_parquet(run / "steps.parquet")
    assert table._control_later(run / "steps.parquet") == pytest.approx(0.01)
    pd.DataFrame(passes[: -number - 1]).to_parquet(run / "steps.parquet")
    assert math.isnan(table._control_later(run / "steps.parquet"))


def test_an_interrupted_run_leaves_its_cell_as_it_was(
    tmp_path: Path, make_table: Callable[[Path], pd.DataFrame]
) -> None:
    write_run(tmp_path / "first", speedup=1.2, commit="a")
    write_run(tmp_path / "first", speedup=1.5, commit="a", load="alone")
    before = make_table(tmp_path / "first")
    write_run(tmp_path / "again", speedup=None, commit="b")
    write_run(tmp_path / "again", speedup=1.6, commit="b", load="alone")
    rows = make_table(tmp_path / "again")
    assert rows.loc["8"].equals(before.loc["8"])
    assert rows.loc["alone", "speedup"] == 1.6


def test_a_folder_without_finished_runs_is_an_error(
    tmp_path: Path, make_table: Callable[[Path], pd.DataFrame]
) -> None:
    write_run(tmp_path / "runs", speedup=None, commit="a")
    with pytest.raises(SystemExit, match="no finished results"):
        make_table(tmp_path / "runs")


def test_what_was_foretold_stands_beside_what_was_measured(
    tmp_path: Path, make_table: Callable[[Path], pd.DataFrame]
) -> None:
    write_run(tmp_path / "runs", speedup=1.5, commit="a", load="alone")
    make_table(tmp_path / "runs")
    written = (table.HERE / "table.md").read_text(encoding="utf-8")
    assert "| ngram | cnndm, 0 | a chain of 3 | 1.25 | 1.50 | 2.00 | 2.20 |" in written
    assert "Within 15% of the measured length: 1 of 1." in written
