"""What `--help` prints: a command's settings, from their schema and conf/."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pydantic.fields import FieldInfo

from specresearch.cli.choices import EXPERIMENT, choices
from specresearch.cli.commands import COMMANDS
from specresearch.cli.config import conf_dir
from specresearch.settings.base import TARGET, Settings
from specresearch.settings.check import plain
from specresearch.settings.commands import schema_of
from specresearch.settings.fields import choice_of, item_model_of, model_of
from specresearch.settings.sentences import allowed, options_of, show

HELP = ("--help", "-h")
WIDTH = 100  # columns, where the terminal does not say
LEAST_WIDTH = 60
INDENT = 36
UNSET = "???"  # the value of a key that has to be given
TRAINABLE = "+proposer=draft_model"  # distill shows no student without a method


def print_help(command: str, arguments: Sequence[str]) -> None:
    """Print the settings of a command as `arguments` leave them, each with an explanation."""
    overrides = [word for word in arguments if word not in HELP and not word.startswith("-")]
    if command == "distill" and not any(word.startswith("+proposer=") for word in overrides):
        overrides.append(TRAINABLE)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose(command, overrides, return_hydra_config=True)
    about = COMMANDS[command]
    print(f"python -m specresearch.{command}: {about.purpose}\n")
    offered = dict(_choices(cfg, schema_of(command)))
    if offered:
        print("Choices; add one and --help to see its settings\n")
        for group, (choice, names) in offered.items():
            has_default = group in cfg.hydra.runtime.choices  # which may be null
            prefix = "" if has_default else "+"
            _print_entry(f"{prefix}{group}={choice or ''}", [", ".join(names)])
    print("\nSettings, as they are now\n")
    chosen = {word.lstrip("+").partition("=")[0] for word in overrides}
    rows = _rows(plain(cfg), schema_of(command), "")
    for path, value, field in sorted(rows, key=lambda row: row[0].partition(".")[0] not in chosen):
        limits = allowed(field)
        if field.examples and not (options_of(field) or field.annotation is bool):
            limits += f", such as {show(field.examples[0])}"
        _print_entry(f"{path}={show(value)}", [str(field.description), f"({limits})"])
    print("\nExamples\n")
    for example in about.examples:
        print(f"  python -m specresearch.{command} {example}")


def _print_entry(head: str, lines: Sequence[str]) -> None:
    """Print an entry with its explanation in a column of its own."""
    width = max(LEAST_WIDTH, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH))
    indent = " " * INDENT
    wrapped = [part for line in lines for part in textwrap.wrap(line, width - INDENT)]
    if len(head) + 4 <= INDENT:
        print(f"  {head}".ljust(INDENT) + wrapped.pop(0))
    else:
        print(f"  {head}")
    for line in wrapped:
        print(indent + line)


def _choices(
    cfg: DictConfig, schema: type[Settings]
) -> Iterator[tuple[str, tuple[str | None, list[str]]]]:
    """Yield each config group of the command, with the choice made and those there are."""
    made = dict(cfg.hydra.runtime.choices)
    groups = {str(group): choice for group, choice in made.items() if "hydra/" not in str(group)}
    if "proposer" in schema.model_fields:
        groups.setdefault("proposer", None)
    groups[EXPERIMENT] = None
    for group, choice in sorted(groups.items()):
        names = choices(group, schema)
        if names:
            yield group, (choice, names)


def _rows(
    values: Mapping[str, Any], schema: type[Settings], prefix: str
) -> Iterator[tuple[str, Any, FieldInfo]]:
    """Yield path, default and field of every key, those of chosen classes included."""
    groups = []
    for name, field in schema.model_fields.items():
        if name not in values and not field.is_required():
            continue
        value, path = values.get(name, UNSET), f"{prefix}{name}"
        choice, model = choice_of(field), model_of(field)
        if choice is not None and isinstance(value, Mapping):
            groups.append((value, choice.models.get(str(value.get(TARGET))), path))
        elif model is not None and isinstance(value, Mapping):
            groups.append((value, model, path))
        elif choice is None:
            yield path, value, field
            item = item_model_of(field)
            if item is not None:
                for key, sub in item.model_fields.items():
                    default = UNSET if sub.is_required() else sub.get_default()
                    yield f"{path}.NAME.{key}", default, sub
    for value, model, path in groups:
        if model is not None:
            yield from _rows(value, model, f"{path}.")


def wants_help(arguments: Sequence[str]) -> bool:
    return any(word in HELP for word in arguments)
