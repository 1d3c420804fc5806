"""Errors of users in one line."""

import os
import re
import shutil
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from specresearch.cli.config import conf_dir
from specresearch.cli.folder import folder_override
from specresearch.files import means_full
from specresearch.results.config import PROVENANCE
from specresearch.settings.base import Settings
from specresearch.settings.check import unknown_key
from specresearch.settings.fields import names_below
from specresearch.settings.sentences import nearest

USER_ERRORS = (
    ValueError,
    MemoryError,
    OSError,
    HydraException,
    OmegaConfBaseException,
)
OUT_OF_MEMORY = "OutOfMemoryError"  # torch's, which is not imported here
_NOISE = ("full_key:", "object_type=", "See https://")  # beginnings of lines that say nothing


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is about settings, files or memory, and not a mistake in the code."""
    is_known = isinstance(error, USER_ERRORS) or type(error).__name__ == OUT_OF_MEMORY
    return is_known or means_full(error)


def explain(
    error: BaseException, schema: type[Settings] | None = None, *, can_resume: bool = False
) -> str:
    """Return what went wrong and what to do about it, in one line.

    Args:
        schema: The command's settings, to find the key that was meant.
        can_resume: The command can continue a run that was stopped.
    """
    if not means_full(error):
        unknown = re.match(r"Could not override '(.+?)'\.", str(error))
        if unknown and schema is not None:
            return _unknown_key(unknown[1], schema)
        return one_line(error)
    filename = getattr(error, "filename", None)
    folder = Path.cwd()
    if HydraConfig.initialized():
        folder = Path(HydraConfig.get().runtime.output_dir)
    path = Path(os.fsdecode(filename)).absolute() if filename else folder
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    num_free = shutil.disk_usage(existing).free
    resume = ""
    if can_resume and (folder / PROVENANCE).exists():
        resume = f" with {folder_override(folder)} resume=true"
    return (
        f"no room to write {path}, whose disk has {num_free / 1e6:,.1f} MB free "
        f"({one_line(error)}); what was written before is kept: make room, then give the same "
        f"command{resume} once more"
    )


def one_line(error: BaseException) -> str:
    """Return an error's message without the machinery that it passed through."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.partition("/")
        hint = nearest(name.replace("/", "_"), error.options)
        if group == "target" and "/" in name:
            hint = f"; for a model of your own, write target=local target.model={name}"
        return f"there is no {group}={name}{hint}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = re.search(r"full_key: (\S+)", str(error))
        cause = one_line(error.__cause__)
        if isinstance(error.__cause__, USER_ERRORS):
            return cause
        kind = type(error.__cause__).__name__
        name = f"{key[1]}: " if key else ""
        return f"{name}{kind}: {cause}; HYDRA_FULL_ERROR=1 shows where"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is not set; add {error.full_key}=..."
    unset = re.match(r"Error resolving interpolation '\$\{(\w+)\}'", str(error))
    if unset:
        return f"{unset[1]} is not set; add +{unset[1]}=..."
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read as key=value; quote values with brackets, braces, "
            "commas or spaces, as in 'compare=[2,5]'"
        )
    several = re.match(r"Ambiguous value for argument '(.+?)=(.+)'", str(error))
    if several:
        return (
            f"{several[1]}={several[2]} has several values; add -m to run one after the other, or "
            f"write '{several[1]}=[{several[2]}]' if the setting is a list"
        )
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    return " ".join(kept) or type(error).__name__


def _unknown_key(key: str, schema: type[Settings]) -> str:
    group, _, name = key.partition(".")
    arguments = sys.argv[1:]
    if not name and group in names_below(schema, "") and (conf_dir() / group).is_dir():
        return f"{group} has no default here; write +{group}= with a plus"
    if any(re.match(rf"\+?{group}=.*,", argument) for argument in arguments):
        return f"{key!r} belongs to a {group} of which a sweep has several; write ++{key}=..."
    prefix, _, last = key.rpartition(".")
    if last not in names_below(schema, prefix):
        return unknown_key(key, schema)
    choices = [
        file.stem for file in sorted((conf_dir() / group).glob("*.yaml")) if _has(file, last)
    ]
    is_chosen = any(re.match(rf"\+?{group}=", argument) for argument in arguments)
    if choices and not is_chosen and not schema.model_fields[group].is_required():
        return f"there is no setting {key} yet; add +{group}= first, one of: {', '.join(choices)}"
    if choices and prefix == group:
        names = ", ".join(choices)
        return f"there is no setting {key} for the chosen {group}; those with one: {names}"
    return f"{key} has no value yet; write +{key}=... with a plus"


def _has(file: Path, key: str) -> bool:
    """Return whether a choice in conf/ has a key."""
    return re.search(rf"^{re.escape(key)}:", file.read_text(encoding="utf-8"), re.M) is not None
