"""Opening what an earlier run recorded."""

from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from specresearch.recording.recording import Header, Recording


def open_recording(path: Path) -> Recording:
    """Raises ValueError for one that cannot be read, with its file."""
    try:
        return Recording(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"the recording in {path} is damaged ({error}); record the run again with record=true"
        ) from error


def version_caution(header: Header) -> str | None:
    """What to doubt of a recording that another version of the package made in the same format."""
    own = version("specresearch")
    if header.package == own:
        return None
    told = header.package or "an unknown version"
    return f"recorded by specresearch {told} and read by {own}: what that version did otherwise is not in the recording"
