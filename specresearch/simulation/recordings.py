"""Opening what an earlier run recorded."""

from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from specresearch.recording.header import Header
from specresearch.recording.recording import Recording


def open_recording(path: Path) -> Recording:
    """Return the recording in a folder. Raises ValueError, with its file, if it is damaged."""
    try:
        return Recording(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"the recording in {path} is damaged ({error}); record the run again with record=true"
        ) from error


def version_caution(header: Header) -> str | None:
    """Return what to doubt of a recording that another version of the package made."""
    current = version("specresearch")
    if header.package == current:
        return None
    recorded = header.package or "an unknown version"
    return (
        f"recorded by specresearch {recorded} and read by {current}: what that version did "
        "otherwise is not in the recording"
    )
