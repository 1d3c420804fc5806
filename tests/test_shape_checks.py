"""The package's annotations are checked at run time, with and without shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def top_level(function: Any) -> Any:
    """Check a function as one of a module is: equal calls are remembered."""
    function.__qualname__ = function.__name__
    return check(function, typechecker=beartype)


def rows_of(
    rows: Float[Tensor, "B N"], weights: Float[Tensor, " B"] | None = None, *, number: int = 1
) -> tuple[Float[Tensor, " B"], Float[Tensor, " N"]]:
    return rows[:number, 0].expand(len(rows)), rows[0]


def test_a_second_call_is_checked_like_the_first() -> None:
    checked = top_level(rows_of)
    for _ in range(3):
        checked(torch.ones(2, 3))
        checked(torch.ones(2, 3), torch.ones(2), number=1)
        checked(weights=None, rows=torch.ones(4, 3))
        for wrong, given in [
            ((torch.ones(2, 3), torch.ones(3)), {}),
            ((torch.ones(2),), {}),
            ((torch.ones(2, 3).long(),), {}),
            ((torch.ones(2, 3), [1.0, 1.0]), {}),
            (("rows",), {}),
            ((torch.ones(2, 3),), {"number": "one"}),
        ]:
            with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
                checked(*wrong, **given)


def test_a_result_is_checked_in_every_call() -> None:
    results = {
        "right": (torch.ones(2), torch.ones(3)),
        "sizes": (torch.ones(3), torch.ones(2)),
        "precision": (torch.ones(2).long(), torch.ones(3)),
        "number": (torch.ones(2),),
        "none": None,
    }

    def given(
        rows: Float[Tensor, "B N"], which: str
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " N"]]:
        return results[which]  # pyright: ignore[reportReturnType]

    checked = top_level(given)
    for _ in range(3):
        checked(torch.ones(2, 3), "right")
        for wrong in results.keys() - {"right"}:
            with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
                checked(torch.ones(2, 3), wrong)


def test_arguments_that_a_call_changes_are_checked_again() -> None:
    def change(rows: Float[Tensor, "B N"], names: list[int], new: Any) -> Float[Tensor, " B"]:
        before = len(rows)
        names[0] = new
        if new == 2:
            rows.resize_(3, 3)
        return torch.ones(before)

    checked = top_level(change)
    for _ in range(3):
        checked(torch.ones(2, 3), [0], 1)
        for new in ("one", 2):
            with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
                checked(torch.ones(2, 3), [0], new)


@dataclass
class Rows:
    values: Float[Tensor, "B N"]
    weights: Float[Tensor, " B"] | None = None
    name: str = ""


@dataclass
class NamedRows(Rows):
    number: int = 0


def test_fields_of_dataclasses_are_checked() -> None:
    for made in (check(Rows, typechecker=beartype), check(NamedRows, typechecker=beartype)):
        for _ in range(3):
            made(torch.ones(2, 3), torch.ones(2))
            for wrong in [(torch.ones(2, 3), torch.ones(3)), (torch.ones(2, 3), None, 1)]:
                with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
                    made(*wrong)
    with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
        NamedRows(torch.ones(2, 3), number="one")  # pyright: ignore[reportArgumentType]


def joined(
    parts: list[Float[Tensor, " N"]] | None, more: Sequence[Float[Tensor, " N"]] = ()
) -> tuple[Float[Tensor, " N"], ...]:
    return (*(parts or ()), *more)


def test_every_array_of_a_sequence_is_checked() -> None:
    checked, two, three = top_level(joined), torch.ones(2), torch.ones(3)
    checked([two, two])
    for _ in range(3):
        checked([two, two])
        checked(None, [two])
        checked([], more=(three, three))
        for wrong in ([two, three], [two, 1.0], [two.long(), two.long()], (two, two)):
            with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
                [checked(wrong) for _ in range(30)]  # jaxtyping looks at one that it draws


@pytest.mark.parametrize("hint", [Float[Tensor, "{number}"], "Float[Tensor, 'N']"])
def test_other_annotations_are_left_to_jaxtyping(hint: Any) -> None:
    def first(rows: hint, number: int) -> None:  # pyright: ignore[reportInvalidTypeForm]
        pass

    checked = top_level(first)
    for _ in range(3):
        checked(torch.ones(2), 2)
        with pytest.raises(TypeCheckError):
            checked(torch.ones(2, 2), 2)


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
