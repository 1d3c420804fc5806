"""Check a class before models are loaded: can it be imported, and with what can it be called?"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from specresearch.settings.base import TARGET
from specresearch.settings.sentences import nearest

TOY = "toy"  # a classmethod that builds the class for certificates, with settings of its own
PARTIAL = ("_partial_", "_args_")  # Hydra's keys that leave parameters to others


def problems_of_class(values: Mapping[str, Any], path: str, base: str | None) -> Iterator[str]:
    """Yield a sentence for each reason why `values` cannot become an object.

    Args:
        values: The settings, with the path of the class as `_target_`.
        path: Their key, such as "proposer".
        base: The path of the class that it must be derived from, if there is one.
    """
    name = values[TARGET]
    key = f"{path}.{TARGET}={name}"
    try:
        found = resolve_name(name)
    except Exception as error:
        yield f"{key} cannot be imported: {_why(name, error)}"
        return
    if not callable(found):
        yield f"{key} is no class but {found!r}"
        return
    if base and isinstance(found, type) and not issubclass(found, resolve_name(base)):
        kind = base.rpartition(".")[2]
        yield f"{key} is no {kind}; derive the class from {base}"
        return
    needs_all = base is not None and not hasattr(found, TOY)
    yield from _problems_of_call(found, values, path, needs_all=needs_all)


def has_default(path: str, name: str) -> bool:
    """Return whether a class or function can be called without this parameter."""
    parameter = inspect.signature(resolve_name(path)).parameters.get(name)
    return parameter is not None and parameter.default is not parameter.empty


def _why(name: str, error: Exception) -> str:
    """Return why an object cannot be imported."""
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        return "it must be the path of a class, such as my_package.MyClass"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        return f"there is no module {missing.name}; install it, or add its folder to PYTHONPATH"
    except Exception as failure:
        return f"importing {module_name} fails with {type(failure).__name__}: {failure}"
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if isinstance(value, type)]
        return f"there is no {attribute} in {module_name}{nearest(attribute, names)}"
    return str(error)


def _problems_of_call(
    function: Callable[..., Any], values: Mapping[str, Any], path: str, *, needs_all: bool
) -> Iterator[str]:
    """Yield a sentence for each parameter that does not exist, or has no value."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a function in C
        return
    names = [parameter.name for parameter in parameters]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for name in values:
        if not takes_any and name not in names and not name.startswith("_"):
            yield f"there is no setting {path}.{name}{nearest(name, names)}"
    if not needs_all or any(key in values for key in PARTIAL):
        return
    for parameter in parameters:
        is_several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not is_several and parameter.name not in values:
            yield f"{path}.{parameter.name} is not set, and {values[TARGET]} needs it"
