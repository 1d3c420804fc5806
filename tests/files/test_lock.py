import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specresearch.files.lock import FolderInUseError, lock_folder

HOLD = "import sys, time, pathlib; from specresearch.files.lock import lock_folder\n"
HOLD += (
    "lock = lock_folder(pathlib.Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
)


def held_elsewhere(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_another_process_is_locked_out_until_the_first_is_killed(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "run") as process:
        with pytest.raises(
            FolderInUseError, match=r"run is being written to by another process; wait until"
        ):
            lock_folder(tmp_path / "run")
        process.send_signal(signal.SIGKILL)
    assert lock_folder(tmp_path / "run").is_locked


def test_a_lock_lasts_as_long_as_its_handle(tmp_path: Path) -> None:
    first, second = lock_folder(tmp_path), lock_folder(tmp_path)
    del first
    assert second.is_locked
    del second
    gc.collect()
    with held_elsewhere(tmp_path) as process:
        process.kill()
