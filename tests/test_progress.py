"""Progress: lines without a terminal, a drawn bar on one, silence if asked, and the time left."""

import io

import pytest
from rich.console import Console

from specresearch import progress as module
from specresearch.progress import Progress, Screen, duration, progress_shown


class Time:
    """A clock for `Progress` that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_line_about_every_ten_seconds(clock: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(100, "prompts", what="plain", figures=lambda: {"tokens/s": "7"}) as progress:
        for _ in range(40):
            clock.now += 1
            progress.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "plain: 3 of 100 prompts, tokens/s 7, about 2 min to go"
    assert [int(line.split()[1]) for line in lines] == [3, 13, 23, 33]


def test_short_work_writes_nothing_unless_shown(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(3, "rows")
    for _ in range(3):
        progress.advance()
    assert not capsys.readouterr().err
    progress.show()
    assert capsys.readouterr().err.startswith("3 of 3 rows")


@pytest.mark.parametrize("how", ["disabled", "hidden"])
def test_silence(clock: Time, capsys: pytest.CaptureFixture[str], how: str) -> None:
    with progress_shown(how != "hidden"):
        progress = Progress(3, "rows", enabled=how != "disabled")
    clock.now += 60
    progress.advance()
    progress.show()
    assert capsys.readouterr().err == ""


def test_the_time_left_ignores_what_was_done_before_and_the_preparation(clock: Time) -> None:
    progress = Progress(100, "rows", num_done=50)
    clock.now += 1000
    progress.say("decoding")
    assert progress.seconds_left is None
    progress.skip(10)
    clock.now += 20
    progress.advance(10)
    assert progress.seconds_left == pytest.approx(60.0)


def test_figures_are_computed_only_when_something_is_shown(clock: Time) -> None:
    num_calls = 0

    def figures() -> dict[str, str]:
        nonlocal num_calls
        num_calls += 1
        return {}

    progress = Progress(100, "rows", figures=figures)
    for _ in range(50):
        progress.advance()
    assert num_calls == 0
    clock.now += 5
    progress.tick()
    assert num_calls == 1


def test_a_terminal_gets_a_table_above_the_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Screen(console) as screen:
        screen.draw("ngram: 3 of 24 prompts", 3 / 24, {"plain tokens/s": "153", "speedup": "4.7"})
        text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for word in ("plain tokens/s", "153", "speedup", "4.7", "ngram: 3 of 24 prompts"):
        assert word in text
    assert text.index("plain tokens/s") < text.index("ngram: 3 of 24")


@pytest.mark.parametrize(("seconds", "words"), [(14.2, "14 s"), (300, "5 min"), (9000, "2.5 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
