"""Whether folders that somebody named are there."""

from collections.abc import Sequence
from pathlib import Path


def check_exist(folders: Sequence[Path]) -> None:
    """Raise ValueError if there are no such results folders."""
    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise ValueError(
            f"there is no {', '.join(missing)}; give folders of runs, such as outputs/"
        )
