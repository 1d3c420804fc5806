"""Write files atomically and durably, and recognize a full disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

PART = ".part"  # suffix of files that are being written
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_MESSAGES = (
    "No space left",
    "StorageFull",
    "Disk quota exceeded",
    "File too large",
    # torch.save fails in one of two ways and names no cause
    "PytorchStreamWriter failed",
    "unexpected pos ",
)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and replace `path` with that file once it has reached the disk.

    After an error, `path` is unchanged and the partial file is gone.
    """
    part = path.with_name(f"{path.name}{PART}")
    try:
        yield part
        sync(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def check_writable(folder: Path, key: str) -> None:
    """Check that a folder can be created and written to; leave nothing behind.

    Args:
        key: The setting that names the folder.

    Raises:
        ValueError: If it cannot.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{key}={folder} cannot be written to ({reason}); choose another folder"
        ) from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def replace_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def means_full(error: BaseException | None) -> bool:
    """Return True if a write failed because the disk is full.

    Libraries report this by error number, by message, or in the error's cause.
    """
    while error is not None:
        if getattr(error, "errno", None) in FULL:
            return True
        if any(message in str(error) for message in FULL_MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False
