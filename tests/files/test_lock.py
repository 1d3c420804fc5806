import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specresearch.files.lock import FolderInUseError, lock_folder, new_folder

HOLD = "import sys, time, pathlib; from specresearch.files.lock import lock_folder\n"
HOLD += (
    "lock = lock_folder(pathlib.Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
)

APP = """
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

lock = {"_target_": "specresearch.files.lock.LockFolders"}
folder = "it's/${hydra:job.name}"
folders = {"run": {"dir": folder}, "sweep": {"dir": folder, "subdir": "${hydra:job.num}"}}
ConfigStore.instance().store("app", {"x": 0, "hydra": {"callbacks": {"lock": lock}, **folders}})

@hydra.main(version_base="1.3", config_name="app")
def main(cfg):
    with open("folders", "a") as file:
        file.write(HydraConfig.get().runtime.output_dir + "\\n")

main()
"""


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


def test_a_new_folder_is_numbered_if_its_name_is_taken(tmp_path: Path) -> None:
    wanted = tmp_path / "outputs" / "run"
    assert [new_folder(wanted).name for _ in range(3)] == ["run", "run-2", "run-3"]


@pytest.mark.parametrize("is_sweep", [False, True])
def test_commands_that_want_the_same_folder_get_one_each(tmp_path: Path, is_sweep: bool) -> None:
    """Many processes begin at once, and every one of them writes to a folder of its own."""
    (tmp_path / "app.py").write_text(APP)
    mode = ["-m", "x=1,2"] if is_sweep else []
    command = [sys.executable, "app.py", *mode]
    started = [subprocess.Popen(command, cwd=tmp_path) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    folders = [Path(line) for line in (tmp_path / "folders").read_text().splitlines()]
    names = ["app", "app-2", "app-3", "app-4"]
    if not is_sweep:
        assert sorted(folder.name for folder in folders) == names
        return
    assert sorted(folder.parent.name for folder in folders) == sorted(names * 2)
    assert len(set(folders)) == len(folders)
