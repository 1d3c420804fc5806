"""Check a resolved configuration against its schema, before anything is loaded."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specresearch.settings.base import TARGET, Choice, Settings
from specresearch.settings.fields import choice_of, item_model_of, model_of, names_below, paths_of
from specresearch.settings.sentences import (
    allowed,
    allowed_group,
    example_of,
    nearest,
    options_of,
    show,
)
from specresearch.settings.user_classes import has_default, problems_of_class

MAX_LISTED = 3  # of problems in one message
SAME_THING = {"batch_size": "max_running", "max_running": "batch_size"}  # run and load
UNKNOWN, MISSING = "extra_forbidden", "missing"  # types of pydantic's errors
UNRESOLVED = "${"  # begins a value that depends on a key this command does not have


class SettingsError(ValueError):
    """Settings that are not allowed, one sentence for each."""


def check_settings(values: Mapping[str, Any], schema: type[Settings]) -> None:
    """Raise SettingsError for unknown keys, wrong types and ranges, and contradictions.

    Args:
        values: The configuration, as `plain` returns it.
    """
    problems = list(problems_of(values, schema))
    if problems:
        rest = len(problems) - MAX_LISTED
        more = f"; and {rest} more" if rest > 0 else ""
        raise SettingsError("; ".join(problems[:MAX_LISTED]) + more)


def problems_of(
    values: Mapping[str, Any],
    schema: type[Settings],
    prefix: str = "",
    *,
    is_partial: bool = False,
    made_by: str | None = None,
) -> Iterator[str]:
    """Yield a sentence for each value that `schema` does not allow, unknown keys first.

    Args:
        prefix: What the keys begin with in the whole configuration, such as "proposer.".
        is_partial: Keys may be missing, because the values are changes to others.
        made_by: The path of the class that the values are for. Keys may be missing for which it has
            defaults.
    """
    try:
        settings = schema.model_validate(dict(values))
    except ValidationError as error:
        sentences: dict[str, str] = {}
        details = error.errors(include_url=False)
        for detail in sorted(details, key=lambda detail: detail["type"] != UNKNOWN):
            if str(detail["input"]).startswith(UNRESOLVED):
                continue
            may_lack = detail["type"] == MISSING and (
                is_partial or (made_by and has_default(made_by, str(detail["loc"][-1])))
            )
            if not may_lack:
                key, sentence = _explain(detail, values, schema, prefix)
                sentences.setdefault(key, sentence)
        yield from sentences.values()
    else:
        yield from _problems_inside(settings, prefix)


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain containers, without Hydra's own part.

    Keys without a value are left out. Interpolations of keys that do not exist stay as they are
    written.
    """
    return {str(name): _plain(cfg, name) for name in _names(cfg) if name != "hydra"}


def unknown_key(path: str, schema: type[Settings]) -> str:
    """Return a sentence about a key that does not exist, with the one that was probably meant."""
    prefix, _, name = path.rpartition(".")
    elsewhere = {other for other in paths_of(schema) if other.rpartition(".")[2] == name}
    if elsewhere:
        depth = min(other.count(".") for other in elsewhere)
        nearest_to_top = sorted(other for other in elsewhere if other.count(".") == depth)
        meant = " or ".join(nearest_to_top[:MAX_LISTED])
        return f"there is no setting {path}; did you mean {meant}?"
    names = names_below(schema, prefix)
    if SAME_THING.get(name) in names and not prefix:
        return f"there is no setting {path}; did you mean {SAME_THING[name]}?"
    return f"there is no setting {path}{nearest(name, names)}"


def _plain(container: Any, name: Any) -> Any:
    try:
        value = container[name]
    except InterpolationResolutionError:
        unresolved: Any = OmegaConf.to_container(container, resolve=False)
        return unresolved[name]
    if isinstance(value, DictConfig):
        return {str(key): _plain(value, key) for key in _names(value)}
    if isinstance(value, ListConfig):
        return [_plain(value, index) for index in range(len(value))]
    return value


def _names(cfg: DictConfig) -> list[Any]:
    return [name for name in cfg if not OmegaConf.is_missing(cfg, name)]


def _problems_inside(settings: Settings, prefix: str) -> Iterator[str]:
    """Check the groups whose settings depend on a class and, if they are right, contradictions."""
    problems = list(_problems_of_groups(settings, prefix))
    yield from problems or settings.conflicts()


def _problems_of_groups(settings: Settings, prefix: str) -> Iterator[str]:
    for name, field in type(settings).model_fields.items():
        value, path = getattr(settings, name), f"{prefix}{name}"
        if choice_of(field) is not None:
            yield from _problems_of_choice(value, field, path)
        elif isinstance(value, Settings):
            yield from _problems_inside(value, f"{path}.")
        elif isinstance(value, dict) and item_model_of(field) is not None:
            for key, item in value.items():
                if item is not None:
                    yield from _problems_inside(item, f"{path}.{key}.")


def _problems_of_choice(value: Any, field: FieldInfo, path: str) -> Iterator[str]:
    """Check the settings of a class, which may leave it its own defaults."""
    choice = choice_of(field)
    assert choice is not None
    if value is None:
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _problems_of_choice(item, field, f"{path}.{number}")
        return
    if not isinstance(value, Mapping) or not isinstance(value.get(TARGET), str):
        yield _names_no_class(value, choice, path)
        return
    model = choice.models.get(value[TARGET])
    if model is None:
        yield from problems_of_class(value, path, choice.base)
        return
    rest = {name: item for name, item in value.items() if name != TARGET}
    yield from problems_of(rest, model, f"{path}.", made_by=value[TARGET])


def _names_no_class(value: Any, choice: Choice, path: str) -> str:
    """Return a sentence about a value in place of a choice from a config group."""
    if choice.group is None:
        first, field = next(iter(next(iter(choice.models.values())).model_fields.items()))
        return (
            f"{path}={show(value)} must be left as it is; set what it holds, such as "
            f"{path}.{first}={example_of(field)}"
        )
    override = choice.group if path == choice.group else f"{choice.group}@{path}"
    return (
        f"{path}={show(value)} names no {choice.group}; choose one by +{override}=..., or a class "
        f"of yours by +{path}.{TARGET}=my_package.MyClass"
    )


def _explain(
    detail: Any, values: Mapping[str, Any], schema: type[Settings], prefix: str
) -> tuple[str, str]:
    """Return the key that an error of pydantic is about, and a sentence."""
    names: list[str] = []
    fields: Mapping[str, FieldInfo] | None = schema.model_fields
    items: type[Settings] | None = None  # of a mapping whose names are the user's
    wanted = example = ""
    options: list[str] = []
    value: Any = values
    for part in map(str, detail["loc"]):
        path = prefix + ".".join([*names, part])
        if fields is not None and part not in fields:
            if names or prefix:
                return path, f"there is no setting {path}{nearest(part, fields)}"
            return path, unknown_key(path, schema)
        if fields is not None:
            field, model = fields[part], model_of(fields[part])
            wanted, example, options = allowed(field), example_of(field), options_of(field)
            fields, items = (model.model_fields if model else None), item_model_of(field)
        elif isinstance(value, Mapping) and part in value:
            wanted, example = (allowed_group(items) if items else "a mapping"), ""
            options = []
            fields, items = (items.model_fields if items else None), None
        else:
            break
        names.append(part)
        value = value.get(part) if isinstance(value, Mapping) else None
    path = prefix + ".".join(names)
    if detail["type"] == MISSING:
        one_of = f", one of {', '.join(options)}" if options else example or "..."
        return path, f"{path} is not set; add {path}={one_of}"
    if options:
        similar = get_close_matches(str(value), options, n=1)
        hint = f"; did you mean {path}={similar[0]}?" if similar else ""
    else:
        hint = f", such as {path}={example}" if example else ""
    return path, f"{path}={show(value)} must be {wanted}{hint}"
