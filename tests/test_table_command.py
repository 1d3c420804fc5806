"""`python -m specresearch.table`: what it prints and writes, and how it fails."""

from pathlib import Path

import pytest

from specresearch import table
from specresearch.reporting.results_table import FORMATS
from tests.reporting.folders import write_load, write_run


def test_a_table_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_load(tmp_path / "runs" / "a", concurrency=8)
    write_run(tmp_path / "runs" / "b", None, method=None)
    arguments = [str(tmp_path / "runs"), "--columns", "method,speedup", "--format", "csv"]
    table.main(arguments)
    printed, notes = capsys.readouterr()
    assert printed == "method,speedup,speedup_low,speedup_high\nngram,1.5,1.4,1.6\n"
    assert "plain decoding only" in notes
    file = tmp_path / "results.csv"
    table.main([*arguments, "--output", str(file)])
    assert capsys.readouterr().out == f"{file}\n"
    assert file.read_text() == printed


def test_formats_of_the_command_are_those_of_the_table() -> None:
    assert set(table.FORMATS) == set(FORMATS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/gone"], "there is no "),
        (["{}"], "nothing here compares a method with plain decoding"),
        (["{}/runs", "--columns", "speed"], "there is no column speed; did you mean speedup?"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    if "--columns" in arguments:
        write_run(tmp_path / "runs" / "a")
    with pytest.raises(SystemExit) as ended:
        table.main([argument.format(tmp_path) for argument in arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}")
    assert error.count("\n") == 1
