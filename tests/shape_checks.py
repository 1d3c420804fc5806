"""Run-time checks of the package's annotations, which long tests may switch off."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def check(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate like `jaxtyping.jaxtyped`, but skip its bookkeeping of sizes if no shape is named.

    Three quarters of all calls in the tests are of such functions. The type checker alone checks
    their arguments and results, which makes tests of the engine a quarter faster.
    """
    if function is None:
        return functools.partial(check, typechecker=typechecker)
    if getattr(function, "__module__", "").startswith("specresearch.mock_cuda"):
        return function  # it runs inside every operation of the pretended device
    if not inspect.isfunction(function):
        return _check_shapes(function, typechecker=typechecker)
    if any(map(names_a_shape, function.__annotations__.values())):
        return _check_shapes(function, typechecker=typechecker)
    checked = typechecker(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if config.jaxtyping_disable else checked)(*args, **kwargs)

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
