"""Lock a folder so that only one process writes to it.

Locks are `flock`s, which the system releases when the process ends, however it ends.
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


class LockFolders(Callback):
    """A Hydra callback that locks a run's folder before Hydra writes to it.

    It locks the folder of a multirun, or that of a run if the command names it. Other runs lock
    theirs later. The processes of a distributed job share a folder, so only the first locks it.
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
            with suppress(OSError):  # Hydra meets it next, and raises it
                self.lock = lock_folder(Path(folder))
        except FolderInUseError as error:
            # an exit, since Hydra turns any other exception of a callback into a warning
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
