"""Tables for papers: the same rows in every format, with special characters escaped."""

import csv
import io
import json
from pathlib import Path

import pytest

from specresearch.reporting import gather
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.results_table import COLUMNS, FORMATS, results_table
from tests.reporting.folders import write_load, write_run

COMPACT = ("method", "load", "drafting", "speedup", "acceptance_length", "unchanged")


@pytest.fixture
def runs(tmp_path: Path) -> list[Comparison]:
    """Return a slow run, a fast one with an acceptance length, and a load test."""
    write_run(tmp_path / "1", (0.9, 0.8, 1.0), method="suffix", num_outputs_equal=150)
    folder = write_run(tmp_path / "2", (1.5, 1.4, 1.6), length=3)
    results = json.loads((folder / "results.json").read_text())
    results["intervals"] = {"mean_acceptance_length": {"value": 3.5, "ci95": [3.25, 3.75]}}
    (folder / "results.json").write_text(json.dumps(results))
    write_load(tmp_path / "3", (1.2, 1.1, 1.3), concurrency=8)
    return gather([tmp_path]).comparisons


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_markdown_has_a_row_for_each_setting(runs: list[Comparison]) -> None:
    header, rule, *rows = results_table(runs, columns=COMPACT).splitlines()
    assert cells(header) == [
        "Method",
        "Load",
        "Drafting",
        "Speedup",
        "Acceptance length",
        "Output unchanged",
    ]
    assert set(rule) == set("|:-")
    assert [cells(row) for row in rows] == [
        ["suffix", "batch size 1", "5 drafts", "0.90 (0.80 to 1.00)", "-", "no"],
        ["ngram", "batch size 1", "3 drafts", "1.50 (1.40 to 1.60)", "3.50 (3.25 to 3.75)", "yes"],
        [
            "ngram",
            "8 requests at a time",
            "goodput controller",
            "1.20 (1.10 to 1.30)",
            "-",
            "yes",
        ],
    ]


def test_rows_are_sorted_by_a_figure_from_high_to_low(runs: list[Comparison]) -> None:
    table = results_table(runs, "csv", ["speedup"], sort="speedup")
    assert [row["speedup"] for row in csv.DictReader(io.StringIO(table))] == ["1.5", "1.2", "0.9"]
    by_method = results_table(runs, "csv", ["method"], sort="method").splitlines()
    assert by_method == ["method", "ngram", "ngram", "suffix"]


def test_rows_without_the_figure_come_last(runs: list[Comparison]) -> None:
    table = results_table(runs, "csv", ["method", "speedup"], sort="acceptance_length")
    assert table.splitlines()[1].startswith("ngram,1.5,")


def test_csv_has_raw_numbers_and_the_ends_of_intervals(runs: list[Comparison]) -> None:
    table = results_table(runs, "csv", ["folder", "speedup", "acceptance_length", "requests"])
    rows = list(csv.DictReader(io.StringIO(table)))
    assert rows[1] == {
        "folder": "2",
        "speedup": "1.5",
        "speedup_low": "1.4",
        "speedup_high": "1.6",
        "acceptance_length": "3.5",
        "acceptance_length_low": "3.25",
        "acceptance_length_high": "3.75",
        "requests": "200",
    }
    assert rows[0]["acceptance_length"] == rows[0]["acceptance_length_low"] == ""


SPECIAL = r"100%_a&b #1 {x}~^$\|"


def test_latex_escapes_its_special_characters(tmp_path: Path) -> None:
    write_run(tmp_path / "1", data=SPECIAL)
    table = results_table(gather([tmp_path]).comparisons, "latex", ["dataset", "speedup"])
    lines = table.splitlines()
    assert lines[:2] == [r"\begin{tabular}{lr}", r"\toprule"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    (row,) = [line for line in lines if "1.50" in line]
    escaped = (
        r"100\%\_a\&b \#1 \{x\}\textasciitilde{}\^{}\$\textbackslash{}|",
        r"1.50 (1.40 to 1.60)",
    )
    assert [cell.strip() for cell in row.removesuffix(r"\\").split(" & ")] == list(escaped)


def test_markdown_escapes_the_bars_of_cells(tmp_path: Path) -> None:
    write_run(tmp_path / "1", data=SPECIAL)
    table = results_table(gather([tmp_path]).comparisons, columns=["dataset"])
    assert r"\\|" in table.splitlines()[-1]
    assert table.splitlines()[-1].replace(r"\|", "").count("|") == 2


@pytest.mark.parametrize("format", FORMATS)
def test_every_column_has_a_value_in_every_format(runs: list[Comparison], format: str) -> None:
    table = results_table(runs, format, list(COLUMNS))
    assert table.endswith("\n")
    assert "ngram" in table
    assert "None" not in table


@pytest.mark.parametrize(("columns", "sort"), [(["speedups"], None), (["speedup"], "speedups")])
def test_an_unknown_column_is_refused(
    runs: list[Comparison], columns: list[str], sort: str | None
) -> None:
    with pytest.raises(ValueError, match=r"no column speedups; did you mean speedup\?"):
        results_table(runs, columns=columns, sort=sort)


def test_the_length_of_answers_is_shown_where_rows_differ_in_it(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    header = cells(results_table(gather([tmp_path]).comparisons).splitlines()[0])
    assert "Answer tokens, at most" not in header
    config = (folders[1] / "config.yaml").read_text()
    (folders[1] / "config.yaml").write_text(config.replace("tokens: 32", "tokens: 96"))
    lines = results_table(gather([tmp_path]).comparisons).splitlines()
    column = cells(lines[0]).index("Answer tokens, at most")
    assert [cells(line)[column] for line in lines[2:]] == ["32", "96"]
