"""The package's annotations are checked at run time, with and without shapes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from shape_checks import check, unchecked
from torch import Tensor

from specresearch.drawing import draw
from specresearch.sampling import derive_seed


def test_wrong_shapes_are_rejected() -> None:
    weights = torch.ones(2, 3)
    uniforms = torch.zeros(4, dtype=torch.float64)
    with pytest.raises(TypeCheckError, match=r"parameters of specresearch\.drawing\.draw"):
        draw(weights, uniforms)


def test_wrong_types_are_rejected_where_no_shape_is_named() -> None:
    with pytest.raises(BeartypeCallHintViolation, match="derive_seed"):
        derive_seed("one")  # pyright: ignore[reportArgumentType]


def test_checks_can_be_switched_off() -> None:
    with unchecked(), pytest.raises(TypeError, match="unsupported operand"):
        derive_seed("one")  # pyright: ignore[reportArgumentType]


def outer(hint: Any) -> Callable[..., Any]:
    def inner(*rows: Float[Tensor, " B"], size: int = 1) -> hint:  # pyright: ignore
        return torch.cat(rows)[:size]

    return check(inner, typechecker=beartype)


def test_functions_in_functions_are_checked() -> None:
    row = torch.ones(2)
    assert len(outer(Float[Tensor, " N"])(row, row, size=3)) == 3
    with pytest.raises(BeartypeCallHintViolation, match=r"inner\(\) parameter rows=.*dimension B"):
        outer(Any)(row, torch.ones(3))
    with pytest.raises(BeartypeCallHintViolation, match=r"inner\(\) parameter size="):
        outer(Any)(row, size="one")


def test_each_function_in_a_function_has_its_own_annotations() -> None:
    row = torch.ones(2)
    assert len(outer(Any)(row)) == 1
    with pytest.raises(BeartypeCallHintViolation, match=r"inner\(\) return "):
        outer(int)(row)
    assert len(outer(Float[Tensor, " N"])(row)) == 1


def test_results_of_functions_in_functions_are_checked() -> None:
    def inner(rows: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
        return rows[0]

    checked = check(inner, typechecker=beartype)
    assert checked(torch.ones(2, 2)).shape == (2,)
    with pytest.raises(BeartypeCallHintViolation, match=r"inner\(\) return .*dimension B"):
        checked(torch.ones(2, 3))


def test_arguments_that_a_function_in_a_function_changes_are_checked_again() -> None:
    def inner(names: list[int]) -> None:
        names[0] = "one"  # pyright: ignore[reportArgumentType, reportCallIssue]

    with pytest.raises(BeartypeCallHintViolation, match="parameter names="):
        check(inner, typechecker=beartype)([1])


def test_unknown_names_are_not_checked() -> None:
    def inner(rows: "ForTypeCheckersAlone", size: "int") -> None:  # pyright: ignore  # noqa: F821
        pass

    checked = check(inner, typechecker=beartype)
    checked("anything", 1)
    with pytest.raises(BeartypeCallHintViolation, match="parameter size="):
        checked("anything", "one")
