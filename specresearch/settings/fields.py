"""What kind of settings a field of a schema holds."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from specresearch.settings.base import Choice, Settings


def choice_of(field: FieldInfo) -> Choice | None:
    """Return the choice whose class decides about the field's settings, if it is one."""
    return next((mark for mark in field.metadata if isinstance(mark, Choice)), None)


def model_of(field: FieldInfo) -> type[Settings] | None:
    """Return the schema of a field that is a group of settings."""
    return _first_model((field.annotation, *get_args(field.annotation)))


def item_model_of(field: FieldInfo) -> type[Settings] | None:
    """Return the schema of the values of a field that maps names of the user's to settings."""
    for annotation in (field.annotation, *get_args(field.annotation)):
        model = _first_model(get_args(annotation))
        if model is not None and model is not model_of(field):
            return model
    return None


def names_below(schema: type[Settings], path: str) -> set[str]:
    """Return the keys that there may be below a dotted path, whichever class was chosen."""
    schemas = [schema]
    parts = iter(path.split(".") if path else ())
    for part in parts:
        fields = [one.model_fields[part] for one in schemas if part in one.model_fields]
        if any(item_model_of(field) for field in fields):
            next(parts, None)  # a name of the user's
        schemas = [below for field in fields for below in _below(field)]
    return {name for one in schemas for name in one.model_fields}


def paths_of(schema: type[Settings], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key that there may be, except in lists and mappings."""
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        if get_origin(field.annotation) is not list and item_model_of(field) is None:
            for below in _below(field):
                yield from paths_of(below, f"{prefix}{name}.")


def _below(field: FieldInfo) -> Iterable[type[Settings]]:
    """Return the schemas that a field's value may have."""
    choice = choice_of(field)
    if choice is not None:
        return choice.models.values()
    model = model_of(field) or item_model_of(field)
    return (model,) if model else ()


def _first_model(candidates: Iterable[Any]) -> type[Settings] | None:
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None
