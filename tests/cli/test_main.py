import importlib
import sys
from pathlib import Path

import pytest

from specresearch.cli import main


def test_all_commands_are_listed() -> None:
    package = Path(main.__file__).parents[1]
    modules = {path.stem for path in package.glob("*.py") if "def main()" in path.read_text()}
    modules |= {"report", "table"}  # their main takes arguments
    assert set(main.COMMANDS) == modules
    for name in main.COMMANDS:
        assert callable(importlib.import_module(f"specresearch.{name}").main)


def test_a_command_gets_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["specresearch", "report", "--help"])
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 0
    assert "python -m specresearch.report" in capsys.readouterr().out


def test_commands_are_listed_if_none_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["specresearch"])
    main.main()
    printed = capsys.readouterr().out
    assert all(name in printed for name in main.COMMANDS)


def test_the_error_for_an_unknown_command_lists_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["specresearch", "teach"])
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 2
    assert "there is no command 'teach'; there are: bench_gpu, certify" in capsys.readouterr().err
