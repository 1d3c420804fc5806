"""Hydra composes a configuration twice: the first time only to look for `hydra.mode`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra._internal.hydra import Hydra

from specresearch.cli.choices import EXPERIMENT

_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")


@contextmanager
def composed_once(arguments: Sequence[str]) -> Iterator[None]:
    """Leave out the first composition, half the time of a short command, if it can find nothing.

    Args:
        arguments: Of the command line.
    """
    if may_set_mode(arguments):
        yield
        return
    get_mode = Hydra.get_mode
    setattr(Hydra, "get_mode", lambda self, config_name, overrides: None)  # noqa: B010
    try:
        yield
    finally:
        setattr(Hydra, "get_mode", get_mode)  # noqa: B010


def may_set_mode(arguments: Sequence[str]) -> bool:
    """Return whether something other than `-m` may make the command a multirun.

    An experiment may, or a setting or option of Hydra.
    """
    for word in arguments:
        if word.startswith("-"):
            if word not in ("-m", "--multirun"):
                return True
            continue
        key = word.lstrip("+~").partition("=")[0].partition("@")[0]
        is_of_hydra = key.startswith("hydra") and key not in _FOLDERS
        if is_of_hydra or key.partition("/")[0] == EXPERIMENT:
            return True
    return False
