"""Run-time checks of the package's annotations, which long tests may switch off."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jaxtyping
from jaxtyping import AbstractArray, config

_check_shapes = jaxtyping.jaxtyped


def names_a_shape(annotation: Any) -> bool:
    """Return True if the annotation contains an array type, or is text that may name one."""
    if isinstance(annotation, str):
        return True
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(names_a_shape(part) for part in typing.get_args(annotation))


def resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return the annotation with names looked up, Any if one is there for type checkers alone."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
    except Exception:  # jaxtyping skips what it cannot read, too
        return Any


def _without_unknown_names(typechecker: Callable[..., Any], function: Any) -> Any:
    annotations = function.__annotations__
    known = {name: resolved(hint, function.__globals__) for name, hint in annotations.items()}
    function.__annotations__ = known
    try:
        return typechecker(function)
    finally:
        function.__annotations__ = annotations


def check(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate like `jaxtyping.jaxtyped`, but check every argument once.

    Jaxtyping checks arguments in functions of their own, and again beside the result, to say in its
    errors which of them it was, which the type checker says, too. Here it only keeps the sizes of a
    call, and those only if a shape is named, which most calls in the tests do not.
    """
    if function is None:
        return functools.partial(check, typechecker=typechecker)
    if getattr(function, "__module__", "").startswith("specresearch.mock_cuda"):
        return function  # it runs inside every operation of the pretended device
    if not inspect.isfunction(function):
        return _check_shapes(function, typechecker=typechecker)
    checked = _without_unknown_names(typechecker, function)
    sizes = _check_shapes("context")
    if not any(map(names_a_shape, function.__annotations__.values())):
        sizes = nullcontext()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
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
