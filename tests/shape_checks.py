"""Run-time checks of the package's annotations, which long tests may switch off."""

import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jaxtyping
import numpy as np
import torch
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, config

_check_shapes = jaxtyping.jaxtyped
ITEMS = (tuple, list, Sequence)
OMITTED = object()  # a default value, which no type checker looks at
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


def _is_array(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, AbstractArray)


def _without_shapes(hint: Any) -> Any:
    """Return the hint with arrays of any shape and precision, or `NotImplemented`.

    That is so for sizes that the code computes, such as "{n}", and for arrays inside of anything
    but tuples and sequences.
    """
    if _is_array(hint):
        return NotImplemented if "{" in hint.dim_str else hint.array_type
    parts = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not any(map(names_a_shape, parts)):
        return hint
    plain = tuple([_without_shapes(part) for part in parts])
    if NotImplemented in plain:
        return NotImplemented
    if origin in (typing.Union, types.UnionType):
        is_optional = len(parts) == 2 and types.NoneType in parts
        return functools.reduce(operator.or_, plain) if is_optional else NotImplemented
    is_known = origin in ITEMS and all(map(_holds_arrays_alone, parts))
    return types.GenericAlias(origin, plain) if is_known else NotImplemented


def _holds_arrays_alone(hint: Any) -> bool:
    return hint in (None, types.NoneType, Ellipsis) or _without_shapes(hint) is not hint


def _facts(value: Any) -> Any:
    """Return all that the checks of an array, or of each array of a sequence, depend on.

    Raises:
        AttributeError: If it holds anything else.
    """
    if value is None or value is OMITTED:
        return value
    if isinstance(value, (tuple, list)):
        return tuple([_facts(part) for part in value])
    return type(value), value.dtype, value.shape


def _like(facts: Any) -> Any:
    """Return an array of which these are the facts, or None."""
    if facts is None:
        return None
    kind, dtype, shape = facts
    if issubclass(kind, np.ndarray):
        return np.broadcast_to(np.empty((), dtype), shape)
    return torch.empty(shape, dtype=dtype, device="meta")


def _check_facts(facts: Any, hint: Any, prefix: str) -> None:
    """Check the array of which these are the facts; of a sequence each one."""
    parts, origin = typing.get_args(hint), typing.get_origin(hint)
    if facts is None or _is_array(hint):
        die_if_unbearable(_like(facts), hint, exception_prefix=prefix)
    elif origin in ITEMS:
        is_fixed = origin is tuple and Ellipsis not in parts
        hints = parts if is_fixed else parts[:1] * len(facts)
        for part, part_hint in zip(facts, hints, strict=True):
            _check_facts(part, part_hint, prefix)
    else:  # or None
        (inner,) = [part for part in parts if part is not types.NoneType]
        _check_facts(facts, inner, prefix)


class _Remembered:
    """A function with jaxtyping's checks, of which equal ones are made once.

    Whether arrays fit their annotations depends on their types, precisions and shapes alone. All
    other values are checked in every call.

    Attributes:
        is_possible: The annotations are simple enough.
        places: Position and name of each argument that is an array, or holds some.
        known: By the facts of the arguments, those behind a call and of the result that fit.
    """

    def __init__(self, function: Any, typechecker: Callable[..., Any]) -> None:
        self.function, self.typechecker = function, typechecker
        names = function.__globals__
        self.hints = {
            name: resolved(hint, names) if isinstance(hint, str) else hint
            for name, hint in function.__annotations__.items()
        }
        self.plain = {name: _without_shapes(hint) for name, hint in self.hints.items()}
        changed = [name for name, hint in self.hints.items() if self.plain[name] is not hint]
        arrays = [name for name in changed if name != "return"]
        kinds = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        order = [name for name, kind in kinds.items() if kind in by_place]
        alone = (*by_place, inspect.Parameter.KEYWORD_ONLY)
        is_simple = NotImplemented not in self.plain.values()
        self.is_possible = is_simple and all(kinds[name] in alone for name in arrays)
        self.places = [
            (order.index(name) if name in order else len(order), name) for name in arrays
        ]
        self.returns_array = "return" in changed
        self.thorough = _check_shapes(function, typechecker=typechecker)
        self.known: dict[Any, set[Any]] = {}

    @functools.cached_property
    def light(self) -> tuple[Any, Any]:
        return _checked_by(self.plain, self.function, self.typechecker)

    def facts_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        given = [
            args[at] if at < len(args) else kwargs.get(name, OMITTED) for at, name in self.places
        ]
        return tuple(map(_facts, given))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_possible:
            return self.thorough(*args, **kwargs)
        try:
            before = self.facts_of(args, kwargs)
        except AttributeError:  # not an array
            return self.thorough(*args, **kwargs)
        seen = self.known.get(before)
        if seen is None:
            result = self.thorough(*args, **kwargs)
            self.known[before] = set()
            return result
        checked, check_again = self.light
        result = checked(*args, **kwargs)
        check_again(*args, **kwargs)
        after = self.facts_of(args, kwargs), _facts(result) if self.returns_array else None
        if after not in seen:
            self.check_anew(before, *after)
            seen.add(after)
        return result

    def check_anew(
        self, before: tuple[Any, ...], after: tuple[Any, ...], facts_of_result: Any
    ) -> None:
        with _check_shapes("context"):
            for facts in (before, after):
                for (_, name), fact in zip(self.places, facts, strict=True):
                    prefix = f"{self.function.__qualname__}() parameter {name}="
                    if fact is not OMITTED:
                        _check_facts(fact, self.hints[name], prefix)
            if self.returns_array:
                prefix = f"{self.function.__qualname__}() return "
                _check_facts(facts_of_result, self.hints["return"], prefix)


def _remember_checks(function: Any, typechecker: Callable[..., Any]) -> Any:
    """Return a function with jaxtyping's checks, which are set up in its first call.

    Most functions are never called in a process, and only then are all names known.
    """

    @functools.cache
    def remembered() -> _Remembered:
        return _Remembered(function, typechecker)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        return remembered()(args, kwargs)

    return call


def _checked_by(hints: Hints, function: Any, typechecker: Callable[..., Any]) -> tuple[Any, Any]:
    """Return a function that is checked by other hints, and one that only checks its arguments."""
    code, names = function.__code__, function.__globals__
    copied = types.FunctionType(
        code, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        is_optional = parameter.default is not parameter.empty
        default = None if is_optional else parameter.empty
        parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    namespace = dict(names)
    exec(f"def arguments{inspect.Signature(parameters)}: pass", namespace)
    arguments = namespace["arguments"]
    for copy, its_hints in ((copied, hints), (arguments, {**hints, "return": None})):
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        copy.__annotations__ = its_hints
    return typechecker(copied), typechecker(arguments)


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
    if inspect.isclass(function):
        init = vars(function).get("__init__")
        is_generated = init is not None and not hasattr(init, "__wrapped__")
        if dataclasses.is_dataclass(function) and is_generated:
            function.__init__ = check(init, typechecker=typechecker)
        return function
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
        make = _remember_checks if runs_at_once else _check_shapes
        return make(function, typechecker=typechecker)
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
