"""What kind of settings a field of a schema holds."""

from collections.abc import Iterable
from typing import Any, get_args

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
    schemas: Iterable[type[Settings]] = [schema]
    for part in filter(None, path.split(".")):
        schemas = [below for one in schemas for below in _below(one, part)]
    return {name for one in schemas for name in one.model_fields}


def _below(schema: type[Settings], name: str) -> Iterable[type[Settings]]:
    field = schema.model_fields.get(name)
    if field is None:
        return ()
    choice = choice_of(field)
    if choice is not None:
        return choice.models.values()
    model = model_of(field)
    return (model,) if model else ()


def _first_model(candidates: Iterable[Any]) -> type[Settings] | None:
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None
