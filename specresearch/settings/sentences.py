"""Say in words what a key may hold, and how a value looks on the command line."""

import json
import types
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from specresearch.settings.base import Settings

NOUNS = {
    bool: ("true or false", "booleans"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
}


def allowed(field: FieldInfo) -> str:
    """Return what the values of a field are, such as "a whole number of at least 1, or null"."""
    return _allowed(field.annotation, field.metadata)


def allowed_group(schema: type[Settings]) -> str:
    """Return what a group of settings holds."""
    return "a mapping of " + ", ".join(schema.model_fields)


def example_of(field: FieldInfo) -> str:
    """Return an allowed value, or nothing for a group of settings."""
    example = field.examples[0] if field.examples else None
    return "" if example is None else show(example)


def options_of(field: FieldInfo) -> list[str]:
    """Return the words that a field chooses from; none if it holds anything else."""
    annotations = (field.annotation, *get_args(field.annotation))
    literals = [part for part in annotations if get_origin(part) is Literal]
    return [str(option) for part in literals for option in get_args(part)]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a name looks like `name`, or else all of them."""
    names = sorted(names)
    matches = get_close_matches(name, names, n=1)
    if matches:
        return f"; did you mean {matches[0]}?"
    return f"; there are: {', '.join(names)}" if names else ""


def show(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, str):
        return value if value.isprintable() else json.dumps(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    return json.dumps(value, default=str)


def _allowed(annotation: Any, metadata: Sequence[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(arguments[0], [*metadata, *arguments[1:]])
    if origin in (Union, types.UnionType):
        parts = [_allowed(part, metadata) for part in arguments if part is not type(None)]
        if type(None) in arguments:
            parts.append("null")
        return " or ".join(parts)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(show, arguments))
    if origin is list:
        least = next((mark.min_length for mark in metadata if isinstance(mark, MinLen)), 0)
        number = f"{least} or more " if least else ""
        return f"a list of {number}{_plural(arguments[0])}"
    if origin is dict:
        return "a mapping such as {name: value}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return allowed_group(annotation)
    if Ge(0) in metadata and Le(0) in metadata:
        return "0"
    noun = NOUNS[annotation][0] if annotation in NOUNS else "a group of settings"
    return noun + _limits(metadata)


def _plural(annotation: Any) -> str:
    metadata: Sequence[Any] = ()
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
    if get_origin(annotation) is list:
        return "lists of " + _plural(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = map(_plural, get_args(annotation))
        return " or ".join(sorted(parts, key=lambda words: words == "0"))
    if Ge(0) in metadata and Le(0) in metadata:
        return "0"
    noun = NOUNS[annotation][1] if annotation in NOUNS else "settings"
    if annotation is str and metadata:
        return f"{noun} that are not empty"
    return noun + _limits(metadata)


def _limits(metadata: Sequence[Any]) -> str:
    least = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    above = next((m.gt for m in metadata if isinstance(m, Gt)), None)
    most = next((m.le for m in metadata if isinstance(m, Le)), None)
    below = next((m.lt for m in metadata if isinstance(m, Lt)), None)
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}"
    words = []
    if any(isinstance(mark, MinLen) for mark in metadata):
        words.append("that is not empty")
    if least is not None:
        words.append(f"of at least {_number(least)}")
    if above is not None:
        words.append(f"above {_number(above)}")
    if most is not None:
        words.append(f"at most {_number(most)}")
    if below is not None:
        words.append(f"below {_number(below)}")
    return (" " + " and ".join(words)) if words else ""


def _number(value: Any) -> str:
    """Return a number with all its digits, and no more than it needs."""
    if isinstance(value, int):
        return f"{value:,}"
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
