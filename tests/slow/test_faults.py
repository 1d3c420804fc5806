"""Processes that are killed, interrupted or started twice lose no rows and repeat none."""

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from faults import PROGRAMS, Command, commands, ended

pytestmark = pytest.mark.slow
NUM_KILLS = 12


@pytest.fixture
def disturbed(target_overrides: Sequence[str], tmp_path: Path) -> dict[str, Command]:
    return commands(target_overrides, tmp_path)


@pytest.mark.parametrize("program", ["run", "load", "distill"])
def test_a_run_that_is_killed_repeatedly_ends_like_an_uninterrupted_one(
    disturbed: dict[str, Command], program: str, tmp_path: Path
) -> None:
    command, moments, broken = disturbed[program], random.Random(0), tmp_path / "broken"
    expected = command.whole(tmp_path / "whole")
    total, killed = command.num_rows(tmp_path / "whole"), 0
    for _ in range(NUM_KILLS):
        process = command.start(broken, f"resume={str((broken / 'config.yaml').exists()).lower()}")
        left = max(total - command.num_rows(broken), 1)
        command.wait_for(
            process, broken, command.num_rows(broken) + moments.randrange(-1, max(left // 2, 1))
        )
        time.sleep(moments.random() * 0.05)
        process.kill()
        killed += ended(process).code == -signal.SIGKILL
    assert killed >= NUM_KILLS // 2
    done = command.finish(broken, "resume=true")
    assert done.code == 0, done.err
    assert command.outputs(broken) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupted_run_prints_how_to_resume_and_resumes(
    disturbed: dict[str, Command], program: str, number: signal.Signals, tmp_path: Path
) -> None:
    command, folder = disturbed[program], tmp_path / "stopped"
    process = command.start(folder)
    assert command.wait_for(process, folder, 3), process.communicate()[1]
    process.send_signal(number)
    done = ended(process)
    assert done.code == 128 + number, done.err
    assert "interrupted" in done.out
    assert "resume=true" in done.out
    assert "Traceback" not in done.err
    if program in ("run", "load"):
        assert '"complete": false' in (folder / "results.json").read_text(encoding="utf-8")
    again = command.finish(folder, "resume=true")
    assert again.code == 0, again.err
    assert command.outputs(folder) == command.whole(tmp_path / "whole")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_second_process_in_a_folder_is_refused_and_harms_nothing(
    disturbed: dict[str, Command], program: str, tmp_path: Path
) -> None:
    command, folder = disturbed[program], tmp_path / "shared"
    first = command.start(folder)
    assert command.wait_for(first, folder, 1), first.communicate()[1]
    first.send_signal(signal.SIGSTOP)
    try:
        seconds = [command.finish(folder), command.finish(folder, "resume=true")]
    finally:
        first.send_signal(signal.SIGCONT)
    for second in seconds:
        assert second.is_a_sentence, second.err
        assert "is being written to by another process; wait until that ends" in second.err
    done = ended(first)
    assert done.code == 0, done.err
    assert command.outputs(folder) == command.whole(tmp_path / "whole")
