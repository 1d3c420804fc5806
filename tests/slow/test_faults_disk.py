"""On a full disk every command ends with one line, and resumes once there is room."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from faults import PROGRAMS, commands

pytestmark = pytest.mark.slow
SIZE = 8 << 20
ROOM = {
    "run": (0, 16, 40, 96),
    "load": (0, 16, 40, 96),
    "distill": (0, 16, 64, 256),
    "certify": (0, 12, 24),
}  # KiB that are free when the command starts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(mount)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(file: Path, room: int) -> None:
    """Fill the disk up to that many KiB."""
    file.write_bytes(bytes(max(shutil.disk_usage(file.parent).free - (room << 10), 0)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_full_disk_is_one_line_and_the_run_resumes_once_there_is_room(
    target_overrides: Sequence[str], program: str, small_disk: Path, tmp_path: Path
) -> None:
    command = commands(target_overrides, tmp_path)[program]
    expected = command.whole(tmp_path / "whole")
    ballast, folder = small_disk / "ballast", small_disk / "run"
    for room in ROOM[program]:
        ballast.unlink(missing_ok=True)
        fill(ballast, room)
        before = command.num_rows(folder)
        resumes = (folder / "provenance.json").exists()
        done = command.finish(folder, *(["resume=true"] if resumes else []))
        assert done.is_a_sentence, done.err
        assert "no room to write" in done.err
        assert "what was written before is kept: make room" in done.err
        assert (
            command.num_rows(folder) >= before or program == "distill"
        )  # which goes back to its last checkpoint
    ballast.unlink()
    resumes = (folder / "provenance.json").exists()
    done = command.finish(folder, *(["resume=true"] if resumes else []))
    assert done.code == 0, done.err
    assert command.outputs(folder) == expected
