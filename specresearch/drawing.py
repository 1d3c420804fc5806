"""Draw tokens from distributions, by inverting their cumulative sums."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LARGEST_UNIFORM = 1 - 2.0**-52  # times a total, it is rounded to less than the total
WIDTH = 512  # of the parts into which a large vocabulary is divided
SMALLEST_DIVIDED = 1 << 14


def draw(weights: Float[Tensor, "B V"], uniforms: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Draw one index per row with probability proportional to its weight.

    An index of weight zero is never drawn. If weights are not finite, the index is arbitrary but
    valid.
    """
    points = uniforms.clamp(max=LARGEST_UNIFORM)[:, None]
    if weights.is_cpu and weights.shape[1] >= SMALLEST_DIVIDED:
        return _draw_in_two_steps(weights, points)
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)[:, 0]
    return index.clamp(max=weights.shape[1] - 1)


def _draw_in_two_steps(
    weights: Float[Tensor, "B V"], points: Float[Tensor, "B 1"]
) -> Int[Tensor, " B"]:
    """Draw a part of the vocabulary, then an index in it: sums are cheaper than cumulative sums."""
    num = weights.shape[1]
    end = num // WIDTH * WIDTH
    sums = weights[:, :end].unflatten(1, (-1, WIDTH)).sum(-1)
    if end < num:
        sums = torch.cat([sums, weights[:, end:].sum(-1, keepdim=True)], dim=1)
    cumulative = sums.cumsum(-1, dtype=torch.float64)
    points = points * cumulative[:, -1:]
    part = torch.searchsorted(cumulative, points, right=True).clamp(max=sums.shape[1] - 1)
    points = points - (cumulative.gather(1, part) - sums.gather(1, part))
    begin = part * WIDTH
    index = begin.clamp(max=num - WIDTH) + torch.arange(WIDTH, device=weights.device)
    inside = weights.gather(1, index).double().masked_fill(index < begin, 0.0).cumsum(-1)
    # The two sums of a part may be rounded differently.
    points = points.clamp(min=0).minimum(inside[:, -1:] * LARGEST_UNIFORM)
    place = torch.searchsorted(inside, points, right=True).clamp(max=WIDTH - 1)
    return index.gather(1, place)[:, 0]
