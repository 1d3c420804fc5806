"""Errors of users in one line."""

import os
import re
import shutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import get_origin

from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from specresearch.cli.choices import choices
from specresearch.cli.config import conf_dir
from specresearch.cli.folder import folder_override, output_folder
from specresearch.files import means_full
from specresearch.results.config import PROVENANCE
from specresearch.settings.base import TARGET, Settings
from specresearch.settings.check import unknown_key
from specresearch.settings.commands import SCHEMAS, schema_of
from specresearch.settings.fields import choice_of, names_below
from specresearch.settings.sentences import nearest

USER_ERRORS = (
    ValueError,
    MemoryError,
    OSError,
    HydraException,
    OmegaConfBaseException,
)
ENDINGS = (MemoryError, ConnectionError)  # of a run that keeps what it measured
DECIDES = {"student": "proposer"}  # groups that another one chooses
OUT_OF_MEMORY = "OutOfMemoryError"  # torch's, which is not imported here
_TWICE = re.compile(  # what Hydra says of a plus before something that is there
    r"(\S+) appears more than once in the final defaults list|"
    r"Multiple values for (\S+)\. To override|"
    r"Could not append to config\. An item is already at '(.+?)'"
)
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
    if isinstance(error, ENDINGS) or type(error).__name__ == OUT_OF_MEMORY:
        resume = _resume() if can_resume else None
        kept = f"; what was measured is kept: add {resume} to continue" if resume else ""
        return one_line(error) + kept
    if not means_full(error):
        unknown = re.match(r"Could not override '(.+?)'\.", str(error))
        if unknown and schema is not None:
            return _unknown_key(unknown[1], schema)
        missing = re.match(r"Could not delete from config\. '(.+?)' does not exist", str(error))
        if missing and schema is not None:
            return f"there is no {missing[1]} to leave out{_names_beside(missing[1], schema)}"
        if isinstance(error, MissingConfigException) and error.missing_cfg_file and schema:
            return _unknown_choice(error.missing_cfg_file, schema)
        return one_line(error)
    filename = getattr(error, "filename", None)
    folder = _folder()
    path = Path(os.fsdecode(filename)).absolute() if filename else folder
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    num_free = shutil.disk_usage(existing).free
    resume = _resume() if can_resume else None
    resume = f" with {resume}" if resume else ""
    return (
        f"no room to write {path}, whose disk has {num_free / 1e6:,.1f} MB free "
        f"({one_line(error)}); what was written before is kept: make room, then give the same "
        f"command{resume} once more"
    )


def _folder() -> Path:
    """Return the command's output folder."""
    return output_folder() if HydraConfig.initialized() else Path.cwd()


def _resume() -> str | None:
    """Return the overrides that continue the run in the output folder; None if it has not begun."""
    folder = _folder()
    begun = (folder / PROVENANCE).exists()
    return f"{folder_override(folder)} resume=true" if begun else None


def one_line(error: BaseException) -> str:
    """Return an error's message without the machinery that it passed through."""
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
    twice = _TWICE.match(str(error))
    if twice:
        key = next(filter(None, twice.groups()))
        given = next((word for word in sys.argv[1:] if word.startswith(f"+{key}=")), f"+{key}=...")
        return f"{given}: {key} has a value already; write {given[1:]} without the plus"
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
    if last == TARGET and prefix in names_below(schema, ""):
        return _needs_plus(key)
    is_own_class = any(word.startswith(f"+{group}.{TARGET}=") for word in arguments)
    field = schema.model_fields.get(group)
    if field is not None and get_origin(field.annotation) is dict:
        similar = _names_beside(key, schema, certainly=True)
        if similar:
            return f"there is no setting {key}{similar} +{key}=... would add a new one"
        is_own_class |= not names_below(schema, prefix)
    if is_own_class:
        return _needs_plus(key)
    if last not in names_below(schema, prefix):
        return unknown_key(key, schema)
    folder = conf_dir() / group
    having = [name for name in choices(group, schema) if _has(folder / f"{name}.yaml", last)]
    group = DECIDES.get(group, group)
    is_chosen = any(re.match(rf"\+?{group}=", argument) for argument in arguments)
    if having and not is_chosen and not schema.model_fields[group].is_required():
        return f"there is no setting {key} yet; add +{group}= first, one of: {', '.join(having)}"
    if having and DECIDES.get(prefix, prefix) == group:
        names = ", ".join(having)
        return f"there is no setting {key} for the chosen {group}; those with one: {names}"
    return _needs_plus(key)


def _names_beside(key: str, schema: type[Settings], *, certainly: bool = False) -> str:
    """Return "; did you mean ...?" by what conf/ has in a mapping of the user's.

    Args:
        certainly: Return nothing rather than all names, for one that may be a new one.
    """
    group, _, name = key.partition(".")
    name = name.partition(".")[0]
    command = next(command for command in SCHEMAS if schema_of(command) is schema)
    known = OmegaConf.select(OmegaConf.load(conf_dir() / f"{command}.yaml"), group)
    names = list(map(str, known)) if isinstance(known, DictConfig) else []
    if name in names or (certainly and not get_close_matches(name, names, n=1)):
        return ""
    return nearest(name, names)


def _needs_plus(key: str) -> str:
    given = (word for word in sys.argv[1:] if word.startswith(f"{key}="))
    return f"{key} has no value yet; write +{next(given, f'{key}=...')} with a plus"


def _unknown_choice(path: str, schema: type[Settings]) -> str:
    """Return a sentence about a file that conf/ does not have, such as "target/mine"."""
    group, _, name = path.partition("/")
    meant = _of_your_own(group, name, schema)
    hint = f"; {meant}" if meant else nearest(name, choices(group, schema))
    return f"there is no {group}={name}{hint}"


def _of_your_own(group: str, name: str, schema: type[Settings]) -> str:
    """Return how to write something of the user's that was given in place of a choice."""
    path = Path(name)
    if not path.suffix and "/" not in name and not path.exists():
        return ""
    if group == "target":
        return f"for a model of your own, write target=local target.model={name}"
    if group == "dataset":
        key = "path" if path.suffix or path.exists() else "hub_id"
        return f"for prompts of your own, write dataset=prompts dataset.{key}={name}"
    field = schema.model_fields.get(group)
    choice = choice_of(field) if field else None
    if field is None or choice is None or choice.base is None:
        return ""
    kind = choice.base.rpartition(".")[2]
    plus = "" if field.is_required() else "+"
    class_path = f"{path.stem}.My{kind}" if path.suffix == ".py" else name
    return f"for a class of your own, write {plus}{group}.{TARGET}={class_path}"


def _has(file: Path, key: str) -> bool:
    """Return whether a choice in conf/ has a key."""
    return re.search(rf"^{re.escape(key)}:", file.read_text(encoding="utf-8"), re.M) is not None
