"""`python -m specresearch.report`: what it prints, what it writes and how it fails."""

from pathlib import Path

import pytest

from specresearch.report import main
from tests.reporting.folders import write_load, write_run


def test_the_answer_is_printed_and_everything_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_load(tmp_path / "runs" / "a", concurrency=8)
    write_run(tmp_path / "runs" / "b", None, method=None)
    main([str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    printed, told = capsys.readouterr()
    assert printed.splitlines() == [
        "Turn it on: ngram with the goodput controller",
        str(tmp_path / "out" / "report.html"),
    ]
    assert "plain decoding only" in told
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html",
        "report.md",
        "figures",
    }


def test_flags_of_a_server_are_printed_for_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_load(tmp_path / "runs" / "a", concurrency=8)
    main([str(tmp_path / "runs"), "--output", str(tmp_path / "out"), "--flags", "vllm"])
    printed = capsys.readouterr().out
    assert "vllm serve zoo:tiny" in printed
    assert "llama-server" not in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'class="copy"' in page
    assert "llama-server" in page
    assert "<script" not in page


def test_limits_are_the_users_or_else_the_load_runs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_load(tmp_path / "runs" / "a", tpot_p99=(0.01, 0.02), limits={"ttft": 1.0, "tpot": 0.015})
    command = [str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    for given, answer in (([], "off"), (["--tpot", "0.03"], "on")):
        main([*command, *given])
        assert capsys.readouterr().out.startswith(f"Turn it {answer}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/gone"], "there is no "),
        (["{}"], "nothing here compares a method with plain decoding"),
        (["{}", "--tpot", "-1"], "argument --tpot: -1 must be a number above 0"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument.format(tmp_path) for argument in arguments])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {words}")
    assert told.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_an_absurd_limit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a")
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--tpot", "-1", "--output", str(tmp_path / "out")])
    assert "--tpot: -1 must be a number above 0" in capsys.readouterr().err
