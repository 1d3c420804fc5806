"""Muon (https://kellerjordan.github.io/posts/muon/) with its orthogonalisation in a chosen dtype.

`torch.optim.Muon` orthogonalises one matrix at a time in bfloat16, which is several times slower
than float32 on processors without bfloat16 units. This one stacks matrices of equal shape and uses
the dtype it is given.
"""

import torch
from jaxtyping import Float
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def orthogonalise(
    matrices: Float[Tensor, "n rows cols"], *, dtype: torch.dtype, num_steps: int = 5
) -> Float[Tensor, "n rows cols"]:
    """Move each matrix's singular values close to one by a quintic Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for matrices only; weight decay is decoupled."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                directions = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    buffer = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    directions.append(parameter.grad.lerp(buffer, group["momentum"]))
                updates = orthogonalise(torch.stack(directions), dtype=self.dtype)
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(
                        update, alpha=-scale
                    )
