import pytest
import torch
from torch import Tensor

from specresearch.drawing import LARGEST_UNIFORM, SMALLEST_DIVIDED, WIDTH, draw

LARGE = (SMALLEST_DIVIDED, SMALLEST_DIVIDED + 1, 3 * SMALLEST_DIVIDED + WIDTH - 1)


def test_draws_invert_the_cumulative_distribution() -> None:
    weights = torch.tensor([[1.0, 3.0, 0.0, 4.0]])
    points = torch.tensor([0.0, 0.124, 0.126, 0.499, 0.501, 0.999], dtype=torch.float64)
    assert draw(weights.expand(6, -1), points).tolist() == [0, 0, 1, 1, 3, 3]


def test_the_last_token_of_weight_zero_is_not_drawn_by_rounding() -> None:
    weights = torch.full((1, 1000), 1e-3)
    weights[:, 900:] = 0.0
    assert int(draw(weights, torch.tensor([1 - 2**-53], dtype=torch.float64))) == 899


def inverse(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the draws by one cumulative sum."""
    cumulative = weights.double().cumsum(-1)
    points = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True)[:, 0]


@pytest.mark.parametrize("num", LARGE)
def test_large_vocabularies_are_drawn_from_alike(num: int) -> None:
    generator = torch.Generator().manual_seed(num)
    weights = torch.rand(200, num, generator=generator, dtype=torch.float64)
    weights *= torch.rand(weights.shape, generator=generator) < 0.1
    uniforms = torch.rand(200, generator=generator, dtype=torch.float64)
    assert torch.equal(draw(weights, uniforms), inverse(weights, uniforms))


@pytest.mark.parametrize("num", LARGE)
@pytest.mark.parametrize("place", [0, WIDTH - 1, WIDTH, -1])
@pytest.mark.parametrize("uniform", [0.0, 0.5, LARGEST_UNIFORM, 1 - 2**-53])
def test_the_only_token_with_weight_is_drawn(num: int, place: int, uniform: float) -> None:
    weights = torch.zeros(1, num)
    weights[:, place] = 1e-7
    drawn = draw(weights, torch.tensor([uniform], dtype=torch.float64))
    assert int(drawn) == place % num


def test_large_vocabularies_are_drawn_from_in_proportion() -> None:
    num, samples = SMALLEST_DIVIDED + 7, 4000
    weights = torch.full((1, num), 1e-9)
    tokens = [3, WIDTH - 1, WIDTH, num - 1]
    weights[:, tokens] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    uniforms = torch.rand(samples, generator=torch.Generator().manual_seed(0)).double()
    drawn = draw(weights.expand(samples, -1), uniforms)
    shares = [float((drawn == token).double().mean()) for token in tokens]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.03)


def test_a_draw_from_weights_that_are_not_finite_is_valid() -> None:
    weights = torch.full((1, SMALLEST_DIVIDED), torch.nan)
    assert 0 <= int(draw(weights, torch.zeros(1, dtype=torch.float64))) < SMALLEST_DIVIDED
