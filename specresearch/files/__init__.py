"""Files that survive a kill or a full disk: atomic writes, folder locks and JSON Lines."""

from specresearch.files.atomic import (
    PART,
    check_writable,
    means_full,
    replace_text,
    sync,
    written_whole,
)
from specresearch.files.existing import check_exist

__all__ = [
    "PART",
    "check_exist",
    "check_writable",
    "means_full",
    "replace_text",
    "sync",
    "written_whole",
]
