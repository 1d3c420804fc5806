"""Check a resolved configuration against its schema, before anything is loaded."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specresearch.settings.base import TARGET, Choice, Settings
from specresearch.settings.sentences import allowed, show

MAX_LISTED = 3  # of problems in one message


class SettingsError(ValueError):
    """Settings that are not allowed, one sentence for each."""


def check_settings(values: Mapping[str, Any], schema: type[Settings]) -> None:
    """Raise SettingsError for unknown keys, wrong types and ranges, and contradictions.

    Args:
        values: The configuration as plain containers, interpolations resolved.
    """
    problems = list(problems_of(values, schema, ""))
    if problems:
        rest = len(problems) - MAX_LISTED
        more = f"; and {rest} more" if rest > 0 else ""
        raise SettingsError("; ".join(problems[:MAX_LISTED]) + more)


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain containers, without Hydra's own part.

    Interpolations of keys that do not exist stay as they are written.
    """
    return {str(name): _plain(cfg, name) for name in cfg if name != "hydra"}


def _plain(container: DictConfig | ListConfig, name: Any) -> Any:
    try:
        value = container[name]
    except InterpolationResolutionError:
        return OmegaConf.to_container(container, resolve=False)[name]
    if isinstance(value, DictConfig):
        return {str(key): _plain(value, key) for key in value}
    if isinstance(value, ListConfig):
        return [_plain(value, index) for index in range(len(value))]
    return value


def nearest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    """Return " (did you mean ...?)" if one of `names` looks like `name`, or what there is."""
    matches = get_close_matches(name, list(names), n=1)
    if matches:
        return f"did you mean {matches[0]}?"
    return f"there are: {', '.join(sorted(names))}"


def problems_of(values: Mapping[str, Any], schema: type[Settings], prefix: str) -> Iterator[str]:
    """Yield a sentence for each value that `schema` does not allow; `prefix` begins their keys."""
    try:
        settings = schema.model_validate(dict(values))
    except ValidationError as error:
        seen = set()
        for detail in error.errors(include_url=False):
            if _is_unresolved(detail["input"]):
                continue
            key, sentence = _sentence(detail, values, schema, prefix)
            if key not in seen:
                seen.add(key)
                yield sentence
        return
    yield from _nested(settings, prefix)
    for sentence in settings.conflicts():
        yield sentence


def _nested(settings: Settings, prefix: str) -> Iterator[str]:
    """Check the groups whose settings depend on a class, and the contradictions of sub-groups."""
    for name, field in type(settings).model_fields.items():
        value, path = getattr(settings, name), f"{prefix}{name}"
        choice = next((m for m in field.metadata if isinstance(m, Choice)), None)
        if choice is not None:
            if value is not None:
                yield from _chosen(value, choice, path)
        elif isinstance(value, Settings):
            yield from _nested(value, f"{path}.")
            yield from value.conflicts()
        elif isinstance(value, dict):
            for sub, item in value.items():
                if isinstance(item, Settings):
                    yield from _nested(item, f"{path}.{sub}.")
                    yield from item.conflicts()


def _chosen(value: Any, choice: Choice, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _chosen(item, choice, f"{path}.{number}")
        return
    if not isinstance(value, Mapping) or not isinstance(value.get(TARGET), str):
        yield (
            f"{path}={show(value)} names no {choice.group}; choose one by {path}=, or a class of "
            f"yours by {path}._target_=my_package.MyClass"
        )
        return
    model = choice.models.get(value[TARGET])
    if model is not None:
        rest = {name: item for name, item in value.items() if name != TARGET}
        yield from problems_of(rest, model, f"{path}.")


def _sentence(
    detail: Any, values: Mapping[str, Any], schema: type[Settings], prefix: str
) -> tuple[str, str]:
    """Return the key that an error of pydantic is about, and a sentence."""
    location = detail["loc"]
    names: list[str] = []
    current: Any = schema
    field: FieldInfo | None = None
    value: Any = values
    for part in location:
        fields = getattr(current, "model_fields", None)
        if fields is None:
            if not (isinstance(value, dict) and part in value and _item_model(field)):
                break
            names.append(str(part))
            value, current = value[part], _item_model(field)
            continue
        if part not in fields:
            names.append(str(part))
            path = prefix + ".".join(names)
            return path, f"there is no setting {path}; {nearest(str(part), list(fields))}"
        names.append(part)
        field = fields[part]
        value = value.get(part) if isinstance(value, Mapping) else None
        current = _model(field)
    path = prefix + ".".join(names)
    if field is None:
        return path, f"{path}={show(detail['input'])} is not a group of settings"
    if detail["type"] == "missing":
        return path, f"{path} is not set; add {path}={show(field.examples[0])}"
    example = f", such as {path}={show(field.examples[0])}" if field.examples else ""
    return path, f"{path}={show(value)} must be {allowed(field)}{example}"


def _is_unresolved(value: Any) -> bool:
    """Return whether a value depends on a key that this command does not have."""
    return isinstance(value, str) and value.startswith("${")


def _model(field: FieldInfo) -> type[Settings] | None:
    from typing import get_args

    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None


def _item_model(field: FieldInfo | None) -> type[Settings] | None:
    """Return the model of a mapping's values, if they have one."""
    from typing import get_args

    if field is None:
        return None
    for candidate in (field.annotation, *get_args(field.annotation)):
        for argument in get_args(candidate):
            if isinstance(argument, type) and issubclass(argument, Settings):
                return argument
    return None
