"""The package's annotations are checked at run time, with and without shapes."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from shape_checks import unchecked

from specresearch.drawing import draw
from specresearch.sampling import derive_seed


def test_wrong_shapes_are_rejected() -> None:
    weights = torch.ones(2, 3)
    uniforms = torch.zeros(4, dtype=torch.float64)
    size = r"specresearch\.drawing\.draw.* uniforms=.*size of dimension B is 4 .* value of 2"
    with pytest.raises(BeartypeCallHintViolation, match=size):
        draw(weights, uniforms)


def test_wrong_types_are_rejected_where_no_shape_is_named() -> None:
    with pytest.raises(BeartypeCallHintViolation, match="derive_seed"):
        derive_seed("one")  # pyright: ignore[reportArgumentType]


def test_checks_can_be_switched_off() -> None:
    with unchecked(), pytest.raises(TypeError, match="unsupported operand"):
        derive_seed("one")  # pyright: ignore[reportArgumentType]
