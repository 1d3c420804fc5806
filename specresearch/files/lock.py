"""Lock a folder so that only one process writes to it.

Locks are `flock`s, which the system releases when the process ends, however it ends.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write

LOCK = ".lock"


class FolderInUseError(ValueError):
    """Another process is writing to the folder."""


def lock_folder(folder: Path) -> BaseFileLock:
    """Create a folder if needed, and lock it while the returned object lives.

    A process may lock the same folder more than once.

    Raises:
        FolderInUseError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.resolve() / LOCK, thread_local=False, is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise FolderInUseError(
            f"{folder} is being written to by another process; wait until that ends, or choose "
            "another folder"
        ) from None
    return lock


def new_folder(path: Path) -> Path:
    """Create a folder for this process alone, and return it.

    It is `path` or, if that exists, `path` with a number behind its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, number = path, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
            folder = path.with_name(f"{path.name}-{number}")


class LockFolders(Callback):
    """A Hydra callback that prepares the folder of a run or multirun before Hydra writes to it.

    A folder that the command names is locked. Any other is created, under a name that no other
    command has; that of a multirun is locked, too, and single runs lock theirs later. The processes
    of a distributed job share a folder, so only the first does this.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        if not _is_first():
            return
        if _is_named(config, "hydra.run.dir"):
            self._lock(config.hydra.run.dir)
        else:
            _make_new(config, config.hydra.run)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if not _is_first():
            return
        if not _is_named(config, "hydra.sweep.dir"):
            _make_new(config, config.hydra.sweep)
            quoted = config.hydra.sweep.dir.replace("'", r"\'")
            with read_write(config.hydra.overrides):  # Hydra composes each job's settings from it
                config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
        self._lock(config.hydra.sweep.dir)

    def _lock(self, folder: str) -> None:
        try:
            with suppress(OSError):  # Hydra meets it next, and raises it
                self.lock = lock_folder(Path(folder))
        except FolderInUseError as error:
            # an exit, since Hydra turns any other exception of a callback into a warning
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _is_named(config: DictConfig, key: str) -> bool:
    return any(override.startswith(f"{key}=") for override in config.hydra.overrides.hydra)


def _make_new(config: DictConfig, settings: DictConfig) -> None:
    """Create a new folder for what has `settings.dir`, and put its name there."""
    hydra = HydraConfig.instance()
    before = hydra.cfg
    hydra.set_config(config)  # the name may refer to it
    try:
        with suppress(OSError), read_write(settings):  # Hydra meets the error next, and raises it
            settings.dir = str(new_folder(Path(settings.dir)))
    finally:
        hydra.cfg = before
