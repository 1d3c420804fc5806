"""Errors of users in one line."""

import os
import re
import shutil
import sys
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from specresearch.cli.folder import folder_override
from specresearch.files import means_full

USER_ERRORS = (
    ValueError,
    MemoryError,
    OSError,
    torch.OutOfMemoryError,
    HydraException,
    OmegaConfBaseException,
)
_NOISE = ("full_key:", "object_type=", "See https://")  # beginnings of lines that say nothing


def explain(error: BaseException, *, can_resume: bool = False) -> str:
    """Return what went wrong and what to do about it, in one line.

    Args:
        can_resume: The command can continue a run that was stopped.
    """
    if not means_full(error):
        return one_line(error)
    filename = getattr(error, "filename", None)
    folder = Path.cwd()
    if HydraConfig.initialized():
        folder = Path(HydraConfig.get().runtime.output_dir)
    path = Path(os.fsdecode(filename)).absolute() if filename else folder
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    num_free = shutil.disk_usage(existing).free
    resume = ""
    if can_resume and (folder / "provenance.json").exists():
        resume = f" with {folder_override(folder)} resume=true"
    return (
        f"no room to write {path}, whose disk has {num_free / 1e6:,.1f} MB free "
        f"({one_line(error)}); what was written before is kept: make room, then give the same "
        f"command{resume} once more"
    )


def one_line(error: BaseException) -> str:
    """Return an error's message without the machinery that it passed through."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"there is no {group}={name}; available: {', '.join(error.options)}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = re.search(r"full_key: (\S+)", str(error))
        cause = one_line(error.__cause__)
        return f"{key[1]}: {cause}" if key and isinstance(error.__cause__, TypeError) else cause
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is not set; add {error.full_key}=..."
    unset = re.match(r"Error resolving interpolation '\$\{(\w+)\}'", str(error))
    if unset:
        return f"{unset[1]} is not set; add +{unset[1]}=..."
    unknown = re.match(r"Could not override '(.+?)'\.\s+To append to your config", str(error))
    if unknown:
        return _unknown_key(unknown[1])
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    return " ".join(kept) or type(error).__name__


def _unknown_key(key: str) -> str:
    group = key.partition(".")[0]
    if any(re.match(rf"\+?{group}=.*,", argument) for argument in sys.argv[1:]):
        return f"{key!r} belongs to a {group} of which a sweep has several; write ++{key}=..."
    return f"there is no key {key!r} here; --help lists those there are"
