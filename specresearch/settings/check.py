"""Check a resolved configuration against its schema, before anything is loaded."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specresearch.settings.base import TARGET, Settings
from specresearch.settings.fields import choice_of, item_model_of, model_of, names_below
from specresearch.settings.sentences import allowed, show

MAX_LISTED = 3  # of problems in one message
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
    values: Mapping[str, Any], schema: type[Settings], prefix: str = ""
) -> Iterator[str]:
    """Yield a sentence for each value that `schema` does not allow.

    Args:
        prefix: What the keys begin with in the whole configuration, such as "proposer.".
    """
    try:
        settings = schema.model_validate(dict(values))
    except ValidationError as error:
        sentences = {}
        for detail in error.errors(include_url=False):
            if not str(detail["input"]).startswith(UNRESOLVED):
                key, sentence = _explain(detail, values, schema, prefix)
                sentences.setdefault(key, sentence)
        yield from sentences.values()
    else:
        yield from _problems_inside(settings, prefix)


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain containers, without Hydra's own part.

    Interpolations of keys that do not exist stay as they are written.
    """
    return {str(name): _plain(cfg, name) for name in cfg if name != "hydra"}


def unknown_key(path: str, schema: type[Settings]) -> str:
    """Return a sentence about a key that does not exist, with the one that was probably meant."""
    prefix, _, name = path.rpartition(".")
    names = names_below(schema, prefix)
    if name in names:
        group = path.partition(".")[0]
        return f"there is no setting {path}; add +{group}= first"
    return f"there is no setting {path}{nearest(name, names)}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a name looks like `name`, or else all of them."""
    names = sorted(names)
    matches = get_close_matches(name, names, n=1)
    if matches:
        return f"; did you mean {matches[0]}?"
    return f"; there are: {', '.join(names)}" if names else ""


def _plain(container: Any, name: Any) -> Any:
    try:
        value = container[name]
    except InterpolationResolutionError:
        unresolved: Any = OmegaConf.to_container(container, resolve=False)
        return unresolved[name]
    if isinstance(value, DictConfig):
        return {str(key): _plain(value, key) for key in value}
    if isinstance(value, ListConfig):
        return [_plain(value, index) for index in range(len(value))]
    return value


def _problems_inside(settings: Settings, prefix: str) -> Iterator[str]:
    """Check contradictions, and the groups whose settings depend on a class."""
    yield from settings.conflicts()
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
    choice = choice_of(field)
    assert choice is not None
    if value is None:
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _problems_of_choice(item, field, f"{path}.{number}")
        return
    if not isinstance(value, Mapping) or not isinstance(value.get(TARGET), str):
        yield (
            f"{path}={show(value)} names no {choice.group}; choose one by {path}=, or a class of "
            f"yours by {path}.{TARGET}=my_package.MyClass"
        )
        return
    model = choice.models.get(value[TARGET])
    if model is not None:
        rest = {name: item for name, item in value.items() if name != TARGET}
        yield from problems_of(rest, model, f"{path}.")


def _explain(
    detail: Any, values: Mapping[str, Any], schema: type[Settings], prefix: str
) -> tuple[str, str]:
    """Return the key that an error of pydantic is about, and a sentence."""
    names: list[str] = []
    fields: Mapping[str, FieldInfo] | None = schema.model_fields
    items: type[Settings] | None = None  # of a mapping whose names are the user's
    field: FieldInfo | None = None
    value: Any = values
    for part in map(str, detail["loc"]):
        if fields is None and items is None:
            break
        names.append(part)
        path = prefix + ".".join(names)
        if fields is not None and part not in fields:
            return path, f"there is no setting {path}{nearest(part, fields)}"
        value = value.get(part) if isinstance(value, Mapping) else None
        if fields is None:
            assert items is not None
            fields, items = items.model_fields, None
        else:
            field = fields[part]
            model = model_of(field)
            fields, items = (model.model_fields if model else None), item_model_of(field)
    path = prefix + ".".join(names)
    assert field is not None
    example = show(field.examples[0]) if field.examples else ""
    if detail["type"] == "missing" or value == "???":
        return path, f"{path} is not set; add {path}={example}"
    return path, f"{path}={show(value)} must be {allowed(field)}, such as {path}={example}"
