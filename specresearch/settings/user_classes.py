"""Check a class of the user's before models are loaded: can it be imported and called?"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from hydra.utils import get_class, get_object

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
        found = get_object(name)
    except Exception as error:
        yield f"{key} cannot be imported: {_why(name, error)}"
        return
    if not callable(found):
        yield f"{key} is no class but {found!r}"
        return
    if base and isinstance(found, type) and not issubclass(found, get_class(base)):
        kind = base.rpartition(".")[2]
        yield f"{key} is no {kind}; derive the class from {base}"
        return
    needs_all = base is not None and not hasattr(found, TOY)
    yield from _problems_of_call(found, values, path, needs_all=needs_all)


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
