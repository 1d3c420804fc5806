"""One process at a time in a folder that is written to.

Locks are `flock`s, which the system drops with the process, however it ends.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

LOCK = ".lock"


class FolderInUseError(ValueError):
    """Another process is writing to the folder."""


def lock_folder(folder: Path) -> BaseFileLock:
    """Lock a folder, which is made if need be, for as long as the returned object lives, or until this process ends.

    A process may lock a folder again that it holds. Raises FolderInUseError where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.resolve() / LOCK, thread_local=False, is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise FolderInUseError(
            f"{folder} is being written to by another process; wait until that ends, or choose another folder"
        ) from None
    return lock


class LockFolders(Callback):
    """A Hydra callback that locks the folder of a multirun, or one that a run is given by name, before Hydra writes to it.

    A folder that gets its name from date and time is locked later, by the run itself. The processes of a distributed job share
    a folder, which the first of them locks.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        if any(override.startswith("hydra.run.dir=") for override in config.hydra.overrides.hydra):
            self._lock(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._lock(config.hydra.sweep.dir)

    def _lock(self, folder: str) -> None:
        if os.environ.get("RANK", "0") != "0":
            return
        try:
            with suppress(OSError):  # which Hydra meets next, and raises
                self.lock = lock_folder(Path(folder))
        except (
            FolderInUseError
        ) as error:  # Hydra turns what a callback raises into a warning, unless it is an exit
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
