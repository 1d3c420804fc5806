"""Run-time checks of the package's annotations, which long tests may switch off."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, config

_check_shapes = jaxtyping.jaxtyped
Hints = dict[str, Any]
_known: dict[types.CodeType, tuple[Any, Hints, inspect.Signature, Hints]] = {}


def names_a_shape(annotation: Any) -> bool:
    """Return True if the annotation contains an array type, or is text that may name one."""
    if isinstance(annotation, str):
        return True
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(names_a_shape(part) for part in typing.get_args(annotation))


def resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return the annotation with names looked up, or Any if one is for type checkers only."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
    except Exception:  # jaxtyping skips what it cannot read, too
        return Any


def hints_of(function: Any) -> Hints:
    """Return the annotations of a function, with names looked up."""
    annotations = function.__annotations__
    return {name: resolved(hint, function.__globals__) for name, hint in annotations.items()}


def each(value: Any, parameter: inspect.Parameter) -> Iterable[Any]:
    """Yield the values that a parameter's annotation applies to: of `*args`, every one."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return value
    return value.values() if parameter.kind is parameter.VAR_KEYWORD else (value,)


def _written_checks(typechecker: Callable[..., Any], function: Any) -> Any:
    """Return the function with checks that the type checker writes for it."""
    annotations = function.__annotations__
    function.__annotations__ = hints_of(function)
    try:
        return typechecker(function)
    finally:
        function.__annotations__ = annotations


def _read_checks(function: Any) -> Any:
    """Return the function with the same checks, read from its annotations in every call.

    A nested function is created anew in every call of the outer one. To write checks each time took
    a fifth of the time of some tests.
    """
    module, annotations = function.__module__, function.__annotations__
    known = _known.get(function.__code__)
    if known is None or known[:2] != (module, annotations):
        known = module, annotations, inspect.signature(function), hints_of(function)
        _known[function.__code__] = known
    *_, signature, hints = known
    name = function.__qualname__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for argument, value in signature.bind(*args, **kwargs).arguments.items():
            prefix = f"{name}() parameter {argument}="
            for given in each(value, signature.parameters[argument]):
                die_if_unbearable(given, hints.get(argument, Any), exception_prefix=prefix)
        result = function(*args, **kwargs)
        die_if_unbearable(result, hints.get("return", Any), exception_prefix=f"{name}() return ")
        return result

    return call


def check(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate like `jaxtyping.jaxtyped`, at a part of the cost.

    Arguments are checked before the call and not again after it, checks are built in the first
    call, sizes are kept only if a shape is named, and sizes like "{n}" are not supported.
    Generators are left to jaxtyping. It never decorates coroutines.
    """
    if function is None:
        return functools.partial(check, typechecker=typechecker)
    if getattr(function, "__module__", "").startswith("specresearch.mock_cuda"):
        return function  # it runs inside every operation of the pretended device
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return _check_shapes(function, typechecker=typechecker)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is async; its sizes would not be checked")
    is_nested = "<locals>" in function.__qualname__
    sizes = _check_shapes("context")
    names_shapes = any(map(names_a_shape, function.__annotations__.values()))
    checked: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if checked is None:
            checked = (
                _read_checks(function) if is_nested else _written_checks(typechecker, function)
            )
        if not names_shapes:
            return checked(*args, **kwargs)
        with sizes:
            return checked(*args, **kwargs)

    return call


def install() -> None:
    """Use `check` in every module of the package that is imported from now on."""
    jaxtyping.jaxtyped = check


@contextmanager
def unchecked() -> Iterator[None]:
    """Call the package without checks, for long runs of code that other tests check."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
