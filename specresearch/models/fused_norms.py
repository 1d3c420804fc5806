"""RMS norms as one launch each on a GPU, where the library's launch eight.

A step over few tokens launches more than a thousand kernels, most of them on a few thousand
numbers, and a quarter of them are norms.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}  # of the largest number
COARSE = 0.02
SCALES = (0.01, 1.0)  # of the rows that are tried; the first shows what is added to the variance


class FusedNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + variance_epsilon)`, computed in float32.

    Args:
        weight: Shared with the norm that this one replaces.
    """

    def __init__(self, weight: nn.Parameter, variance_epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = variance_epsilon

    def forward(self, hidden_states: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        weight = self.weight
        return F.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)


def fuse_norms(model: nn.Module) -> int:
    """Replace every norm that computes the same; return their number.

    Whether it does is tried. Norms with hooks (those of accelerate, too, which move inputs and
    weights between devices), a bias or another formula stay.
    """
    fused = {name: _fused(norm) for name, norm in model.named_modules() if _may_be_norm(norm)}
    replaced = {name: norm for name, norm in fused.items() if norm is not None}
    for name, norm in replaced.items():
        model.set_submodule(name, norm)
    return len(replaced)


def _may_be_norm(module: nn.Module) -> bool:
    if "Norm" not in type(module).__name__ or isinstance(module, (nn.RMSNorm, FusedNorm)):
        return False
    is_leaf = not any(module.children()) and not any(module.buffers())
    has_weight = [name for name, _ in module.named_parameters()] == ["weight"]
    is_hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return is_leaf and has_weight and not is_hooked


@torch.no_grad()
def _fused(norm: nn.Module) -> FusedNorm | None:
    """Return what computes the same as a norm; None if nothing does."""
    weight = norm.get_parameter("weight")
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if weight.ndim != 1 or weight.is_meta or not isinstance(epsilon, float):
        return None
    fused = FusedNorm(weight, epsilon).train(norm.training)
    row = torch.linspace(-1, 2, len(weight), dtype=weight.dtype, device=weight.device)
    for scale in SCALES:
        expected = norm(scale * row).float()
        error = (fused(scale * row).float() - expected).abs().max()
        if not error <= TOLERANCE.get(weight.dtype, COARSE) * expected.abs().max():
            return None
    return fused
