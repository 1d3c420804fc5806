"""The choice of a flash kernel for a model, by small examples that it must compute correctly."""

import logging
from collections.abc import Callable, Collection
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from specresearch.models.flash_kernels import (
    KERNELS,
    FlashKernel,
    Sequences,
    attend_masked,
    mask_of,
    nothing_is_negative,
)
from specresearch.models.load_errors import first_line

logger = logging.getLogger(__name__)

# largest error of a small example
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
COARSE = 0.05


class NoKernelError(ValueError):
    """No flash kernel serves a model; the message says why."""


class LayerShape(NamedTuple):
    """What a kernel must serve.

    Attributes:
        width: Of a head.
        has_window: Its causal calls have a window.
    """

    device: torch.device
    dtype: torch.dtype
    width: int
    has_window: bool


def find_kernel(shapes: Collection[LayerShape]) -> FlashKernel:
    """Return the first kernel that computes a small example of every layer correctly.

    An installed package that does not, such as one built for another PyTorch, is passed over with
    a warning.

    Raises:
        NoKernelError: If there is none.
    """
    kinds = sorted({shape.device.type for shape in shapes})
    if kinds == ["cuda"] and any(shape.dtype.itemsize != 2 for shape in shapes):
        raise NoKernelError("flash kernels on a GPU compute in bfloat16 and float16 only")
    reason = f"no flash kernel runs on {' and '.join(kinds)}"
    for kernel in KERNELS.get(kinds[0], ()) if len(kinds) == 1 else ():
        failures = filter(None, (failure_of(kernel, shape) for shape in shapes))
        failure = next(failures, None)
        if failure is None:
            return kernel
        reason = f"{kernel.name} fails with heads of this width and precision ({failure})"
    raise NoKernelError(reason)


@cache
def failure_of(kernel: FlashKernel, shape: LayerShape) -> str | None:
    """Return why a kernel cannot serve a layer, or None if it can."""
    try:
        error = error_of_example(kernel, shape)
    except ModuleNotFoundError:
        return "it is not installed"
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as failed:
        failure = first_line(failed)
    else:
        if error <= TOLERANCE.get(shape.dtype, COARSE):
            return None
        failure = f"a small example is wrong by {error:.2g}"
    if kernel.is_package:
        logger.warning(
            "%s is installed but fails here, so another kernel is used: %s", kernel.name, failure
        )
    return failure


@torch.inference_mode()
def error_of_example(kernel: FlashKernel, shape: LayerShape) -> float:
    """Return the largest error of a kernel and of `attend_masked`.

    The kernel's stretches are out of order, and one of them is empty.
    """
    device = shape.device
    num_queries, kv_heads, scale = 3, 2, shape.width**-0.5
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        values = torch.randn(*size, shape.width, generator=generator)
        return values.to(device, shape.dtype)

    keys, values = draw(64, kv_heads), draw(64, kv_heads)
    begins, lengths = (40, 3, 20, 11), (17, 3, 5, 9)
    calls: list[tuple[int, tuple[int, ...], bool, int | None]] = [
        (1, (17, 0, 5, 9), False, None),
        (2, lengths, True, None),
    ]
    if shape.has_window:
        calls.append((2, lengths, True, 4))
    errors: list[Tensor] = []
    for group, lengths, causal, window in calls:
        sequences = Sequences.of(
            num_queries,
            torch.tensor(begins),
            torch.tensor(lengths),
            device,
            longest=max(lengths),
            causal=causal,
            window=window,
        )
        query = draw(len(begins) * num_queries, kv_heads * group)
        out, lse = kernel.attend(query, keys, values, sequences, scale)
        for i, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
            rows = slice(i * num_queries, (i + 1) * num_queries)
            columns = slice(begin, begin + length)
            key = keys[columns].double().repeat_interleave(group, 1)
            scores = torch.einsum("nhd,khd->hnk", query[rows].double(), key) * scale
            if sequences.causal:
                scores += sequences.bias(length, scores.dtype)
            value = values[columns].double().repeat_interleave(group, 1)
            expected = torch.einsum("hnk,khd->nhd", scores.softmax(-1), value)
            errors.append((out[rows] - expected).abs().max())
            actual_lse = nothing_is_negative(lse[:, rows]).double()
            expected_lse = scores.logsumexp(-1)
            # -inf minus -inf would be NaN
            errors.append((actual_lse.clamp(min=-99) - expected_lse.clamp(min=-99)).abs().max())
    errors += _errors_of_masked(draw, scale)
    return float(torch.stack(errors).max())


def _errors_of_masked(draw: Callable[..., Tensor], scale: float) -> list[Tensor]:
    """Return the largest errors of `attend_masked` on a small example."""
    query, keys, values = draw(2, 2, 3), draw(2, 2, 5), draw(2, 2, 5)
    hidden = torch.ones(2, 1, 3, 5, dtype=torch.bool, device=query.device).triu(1)
    bias = mask_of(hidden, 2, query.dtype)
    out, lse = attend_masked(query, keys, values, bias, scale)
    scores = query.double() @ keys.double().transpose(2, 3) * scale + bias.double()
    expected = scores.softmax(-1) @ values.double()
    return [(out - expected).abs().max(), (lse.double() - scores.logsumexp(-1)).abs().max()]
