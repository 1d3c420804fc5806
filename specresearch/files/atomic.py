"""Files that are whole or not there, on the disk and not only in memory; and how a full disk is recognized."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"  # ends the name of a file that is being written
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_IN_WORDS = (
    "No space left",
    "StorageFull",
    "Disk quota exceeded",
    "File too large",
    "PytorchStreamWriter failed",  # torch.save names no cause,
    "unexpected pos ",  # in either of its two ways to fail
)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the path to write to; what stands there at the end replaces `path`, once it has reached the disk.

    After an error, `path` is as it was and nothing is left beside it.
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


def replace_text(path: Path, text: str) -> None:
    """Write all of a file or nothing."""
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
    """Return True if a write failed for want of room; libraries say so in an error number, in words, or in a cause."""
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(
            words in str(error) for words in FULL_IN_WORDS
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
