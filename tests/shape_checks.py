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


def _each(value: Any, parameter: inspect.Parameter) -> Iterable[Any]:
    """Yield the values that a parameter's annotation applies to: of `*args`, every one."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return value
    return value.values() if parameter.kind is parameter.VAR_KEYWORD else (value,)


def _read_checks(function: Any) -> Any:
    """Return a nested function with jaxtyping's checks, read from its annotations in every call.

    It is created anew in every call of the outer function. To write checks each time, as jaxtyping
    and the type checker do, took a fifth of the time of some tests.
    """
    sizes = _check_shapes("context")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        signature, hints = _read(function)
        given = signature.bind(*args, **kwargs).arguments

        def check_arguments() -> None:
            for argument, value in given.items():
                prefix = f"{function.__qualname__}() parameter {argument}="
                for each in _each(value, signature.parameters[argument]):
                    die_if_unbearable(each, hints.get(argument, Any), exception_prefix=prefix)

        with sizes:
            check_arguments()
            result = function(*args, **kwargs)
            check_arguments()
            prefix = f"{function.__qualname__}() return "
            die_if_unbearable(result, hints.get("return", Any), exception_prefix=prefix)
        return result

    return call


def _read(function: Any) -> tuple[inspect.Signature, Hints]:
    """Return signature and annotations, mostly those of the last function of this code."""
    module, annotations = function.__module__, function.__annotations__
    known = _known.get(function.__code__)
    if known is None or known[:2] != (module, annotations):
        hints = {name: resolved(hint, function.__globals__) for name, hint in annotations.items()}
        known = module, annotations, inspect.signature(function), hints
        _known[function.__code__] = known
    return known[2:]


def check(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate like `jaxtyping.jaxtyped`, but skip its bookkeeping of sizes if no shape is named.

    Three quarters of all calls in the tests are of such functions. The type checker alone checks
    their arguments and results, which makes tests of the engine a quarter faster. Nested functions
    cannot have sizes like "{n}".
    """
    if function is None:
        return functools.partial(check, typechecker=typechecker)
    if getattr(function, "__module__", "").startswith("specresearch.mock_cuda"):
        return function  # it runs inside every operation of the pretended device
    if not inspect.isfunction(function):
        return _check_shapes(function, typechecker=typechecker)
    runs_at_once = not (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )
    if runs_at_once and "<locals>" in function.__qualname__:
        return _read_checks(function)
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
