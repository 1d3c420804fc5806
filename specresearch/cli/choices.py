"""Which choices in conf/ a command accepts."""

import re
from pathlib import Path

import yaml

from specresearch.cli.config import conf_dir
from specresearch.settings.base import Settings
from specresearch.settings.commands import SCHEMAS, schema_of
from specresearch.settings.fields import choice_of
from specresearch.settings.measuring import MeasurementSchema

EXPERIMENT = "experiment"  # the group of ready sweeps


def choices(group: str, schema: type[Settings]) -> list[str]:
    """Return the choices of a config group that a command with this schema accepts."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    return [file.stem for file in files if _accepts(schema, group, file)]


def commands_with(experiment: str) -> list[str]:
    """Return the commands that an experiment is for."""
    file = conf_dir() / EXPERIMENT / f"{experiment}.yaml"
    if not file.is_file():
        return []
    return [name for name in SCHEMAS if _accepts(schema_of(name), EXPERIMENT, file)]


def _accepts(schema: type[Settings], group: str, file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    if group == EXPERIMENT:
        is_measurement = issubclass(schema, MeasurementSchema)
        return is_measurement and _names_in(text) <= schema.model_fields.keys()
    field = schema.model_fields.get(group)
    choice = choice_of(field) if field else None
    chosen = re.search(r"^_target_: (\S+)", text, re.MULTILINE)
    return choice is None or chosen is None or chosen[1] not in choice.excluded


def _names_in(experiment: str) -> set[str]:
    """Return the settings, without what is below them, that an experiment's text sets or sweeps."""
    content = yaml.safe_load(experiment)
    paths = content.keys() - {"defaults", "hydra"}
    paths |= content["hydra"]["sweeper"]["params"].keys()
    for default in content["defaults"]:
        for name in default:
            paths.add(name.removeprefix("override ").lstrip("/").rpartition("@")[2])
    return {path.partition(".")[0] for path in paths}
