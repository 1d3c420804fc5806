"""Kernels that multiply a few rows by a large matrix on a CPU, and the choice among them.

A pass of speculation reads every weight once for a few rows, so memory sets its speed, and kernels
differ in how much of its bandwidth they reach. Which one reaches most depends on the instructions
of the processor: with bfloat16 arithmetic it is oneDNN on weights in its own order, without it a
float32 copy is faster for several rows. So the choice is measured. Every kernel serves any number
of rows and threads, and computes with the weights as they are, up to rounding.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean

import torch
import torch.nn.functional as F
from torch import Tensor

# largest error of a small example
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
EXPECTED_ROWS = 16
MEASURED_ROWS = (1, 4, 16)
MEASURED_BYTES = 64 << 20  # more than most caches hold
ROUNDS = 5
MARGIN = 1.1  # how much faster than the usual kernel another one must be in every round


@dataclass(frozen=True)
class LinearKernel:
    """A kernel.

    Attributes:
        reorder: Returns a copy of a weight [O, I] as the kernel reads it.
        multiply: Takes the input [*, I], the weight, its copy and the bias; returns [*, O].
        copies: Bytes of the copy for each byte of the weight.
    """

    name: str
    reorder: Callable[[Tensor], Tensor]
    multiply: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    copies: int


def _reorder_by_onednn(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, EXPECTED_ROWS)


def _multiply_by_onednn(input: Tensor, _: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")


def _reorder_in_float32(weight: Tensor) -> Tensor:
    if weight.dtype == torch.float32:
        raise NotImplementedError("the copy would be that of _reorder_by_onednn")
    return _reorder_by_onednn(weight.float())


def _multiply_in_float32(
    input: Tensor, weight: Tensor, packed: Tensor, bias: Tensor | None
) -> Tensor:
    if input.numel() == input.shape[-1]:
        return F.linear(input, weight, bias)  # one row reads the fewer bytes
    wide_bias = None if bias is None else bias.float()
    return _multiply_by_onednn(input.float(), weight, packed, wide_bias).to(input.dtype)


def _multiply_plainly(input: Tensor, weight: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(input, weight, bias)


ONEDNN = LinearKernel("oneDNN-packed", _reorder_by_onednn, _multiply_by_onednn, copies=1)
PLAIN = LinearKernel("plain", Tensor.detach, _multiply_plainly, copies=0)
FLOAT32 = LinearKernel(
    "oneDNN-packed in float32", _reorder_in_float32, _multiply_in_float32, copies=2
)
KERNELS = (ONEDNN, PLAIN, FLOAT32)  # the usual one first


@cache
def serves(kernel: LinearKernel, dtype: torch.dtype) -> bool:
    """Return whether a kernel computes a small example in this precision correctly.

    oneDNN refuses bfloat16 on processors that lack AVX-512 and its successors.
    """
    if dtype not in TOLERANCE or not torch.backends.mkldnn.is_available():
        return kernel == PLAIN
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(48, 64, generator=generator) / 8).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    try:
        with torch.no_grad():
            packed = kernel.reorder(weight)
            errors = [_error(kernel, weight, packed, bias, rows) for rows in (1, 2, 5, 16, 40)]
    except (AttributeError, RuntimeError):
        return False
    return max(errors) < TOLERANCE[dtype]


def _error(
    kernel: LinearKernel, weight: Tensor, packed: Tensor, bias: Tensor, num_rows: int
) -> float:
    generator = torch.Generator().manual_seed(num_rows)
    input = torch.randn(num_rows, weight.shape[1], generator=generator).to(weight.dtype)
    exact = F.linear(input.double(), weight.double(), bias.double())
    return (kernel.multiply(input, weight, packed, bias) - exact).abs().max().item()


def fastest(
    kernels: Sequence[LinearKernel], seconds: Callable[[LinearKernel, int], float]
) -> LinearKernel:
    """Return the first kernel unless another one is clearly faster in every round.

    Every number of `MEASURED_ROWS` counts the same: what is compared is the geometric mean of
    ratios of times. On a busy machine single times are off by any factor, but seldom in favour of
    the same slow kernel round after round; so the choice does not change between runs.

    Args:
        seconds: Times a kernel once for a number of rows.
    """
    usual, challengers = kernels[0], list(kernels[1:])
    slowest = dict.fromkeys(challengers, math.inf)
    for _ in range(ROUNDS):
        ratios: dict[LinearKernel, list[float]] = {kernel: [] for kernel in challengers}
        for rows in MEASURED_ROWS:
            usual_seconds = seconds(usual, rows)
            for kernel in challengers:
                ratios[kernel].append(usual_seconds / seconds(kernel, rows))
        for kernel in challengers:
            slowest[kernel] = min(slowest[kernel], geometric_mean(ratios[kernel]))
        challengers = [kernel for kernel in challengers if slowest[kernel] > MARGIN]
        if not challengers:
            return usual
    return max(challengers, key=slowest.__getitem__)


class Stopwatch:
    """Times kernels on the weights of layers of one shape, more than a cache holds if possible."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        num_outputs = MEASURED_BYTES // weights[0][0].nbytes
        num_weights = -(-MEASURED_BYTES // weights[0].nbytes)
        self.weights = [weight.detach()[:num_outputs] for weight in weights[:num_weights]]
        self.packed: dict[LinearKernel, list[Tensor]] = {}

    @torch.no_grad()
    def __call__(self, kernel: LinearKernel, num_rows: int) -> float:
        """Return the seconds of one product with every weight."""
        if kernel not in self.packed:
            self.packed[kernel] = [kernel.reorder(weight) for weight in self.weights]
        pairs = list(zip(self.weights, self.packed[kernel], strict=True))
        first = self.weights[0]
        input = torch.ones(num_rows, first.shape[1], dtype=first.dtype)
        kernel.multiply(input, *pairs[0], None)  # the first call of a kind prepares the kernel
        begin = time.perf_counter()
        for weight, packed in pairs:
            kernel.multiply(input, weight, packed, None)
        return time.perf_counter() - begin


_CHOICES: dict[tuple[object, ...], LinearKernel] = {}


def choose_kernel(weights: Sequence[Tensor], *, measure: bool, most_copies: int) -> LinearKernel:
    """Return the kernel for the weights of layers of one shape and precision.

    Equal shapes get equal kernels for the life of the process, at the same number of threads.

    Args:
        measure: False takes the usual kernel, or the next one that works.
        most_copies: Most bytes of a copy for each byte of a weight.
    """
    first = weights[0]
    kernels = [kernel for kernel in KERNELS if kernel.copies <= most_copies]
    kernels = [kernel for kernel in kernels if serves(kernel, first.dtype)]
    if not measure or len(kernels) == 1:
        return kernels[0]
    key = (first.shape, first.dtype, torch.get_num_threads(), most_copies)
    if key not in _CHOICES:
        _CHOICES[key] = fastest(kernels, Stopwatch(weights))
    return _CHOICES[key]
