"""The settings that a run was started with, and how those of two runs differ."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
RESULTS = "results.json"


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings that a run was started with.

    Raises:
        FileNotFoundError: the folder holds no settings.
        ValueError: the file is damaged.
    """
    try:
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict):
        raise ValueError(
            f"{folder / CONFIG} is damaged: it holds no settings; choose another hydra.run.dir"
        )
    return config


def differing_settings(
    one: Mapping[str, Any], other: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys in which two runs differ, each with both values.

    Args:
        ignored: keys that may differ, with all keys below them.
    """
    first, second = _flatten(one), _flatten(other)
    prefixes = tuple(f"{key}." for key in ignored)
    keys = [key for key in first.keys() | second.keys() if not f"{key}.".startswith(prefixes)]
    pairs = [(key, first.get(key), second.get(key)) for key in sorted(keys)]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
