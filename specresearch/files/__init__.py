"""Files that survive a kill or a full disk: atomic writes, folder locks and JSON Lines."""

from specresearch.files.atomic import (
    PART,
    check_writable,
    means_full,
    replace_text,
    sync,
    written_whole,
)

__all__ = ["PART", "check_writable", "means_full", "replace_text", "sync", "written_whole"]
