"""Every kernel gets what its package expects, and none is used that computes wrongly."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from specresearch.models import kernel_choice
from specresearch.models.flash_kernels import KERNELS, FlashKernel, Sequences
from specresearch.models.kernel_choice import (
    LayerShape,
    NoKernelError,
    error_of_example,
    failure_of,
    find_kernel,
)

CPU = torch.device("cpu")
SHAPE = LayerShape(CPU, torch.float64, 8, has_window=True)
(KERNEL,) = KERNELS["cpu"]
HOPPER, FA3_FWD, FLASH_ATTN, TORCH = KERNELS["cuda"]
Attended = tuple[Tensor, Tensor]


def varlen_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Tensor,
    scale: float,
    window: tuple[int, int],
    *,
    lse_of_nothing: float,
) -> Attended:
    """Compute what FlashAttention computes, from its own arguments."""
    for table in (cu_seqlens_q, cu_seqlens_k, seqused_k):
        assert table.dtype == torch.int32
        assert table.is_contiguous()
    num_sequences, num_heads = len(seqused_k), query.shape[1]
    assert len(cu_seqlens_q) == len(cu_seqlens_k) == num_sequences + 1
    group = num_heads // keys.shape[1]
    out, lse = torch.zeros_like(query), query.new_full((num_heads, len(query)), lse_of_nothing)
    for i in range(num_sequences):
        first, last = cu_seqlens_q[i : i + 2].tolist()
        begin, length = int(cu_seqlens_k[i]), int(seqused_k[i])
        for row in range(first, last):
            at = row - last + length  # the last query stands at the last key
            low = 0 if window[0] < 0 else max(0, at - window[0])
            high = length if window[1] < 0 else min(length, at + window[1] + 1)
            for head in range(num_heads if high > low else 0):
                columns = slice(begin + low, begin + high)
                scores = keys[columns, head // group] @ query[row, head] * scale
                out[row, head] = scores.softmax(0) @ values[columns, head // group]
                lse[head, row] = scores.logsumexp(0)
    return out, lse


def flash_attn_module(lse_of_nothing: float = torch.inf) -> ModuleType:
    """Return a stand-in for flash_attn.flash_attn_interface with the package's signature."""

    def _flash_attn_varlen_forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        return_softmax: bool = False,
        block_table: Tensor | None = None,
        leftpad_k: Tensor | None = None,
        seqused_k: Tensor | None = None,
        zero_tensors: bool = False,
    ) -> tuple[Tensor, Tensor, None, None]:
        assert seqused_k is not None
        assert max_seqlen_k == seqused_k.max()
        assert dropout_p == 0
        window = (window_size_left, 0 if causal else window_size_right)
        tables = cu_seqlens_q, cu_seqlens_k, seqused_k
        out, lse = varlen_attention(
            q, k, v, *tables, softmax_scale, window, lse_of_nothing=lse_of_nothing
        )
        return out, lse, None, None

    module = ModuleType("flash_attn.flash_attn_interface")
    module.__dict__.update(_flash_attn_varlen_forward=_flash_attn_varlen_forward)
    return module


def hopper_module(name: str) -> ModuleType:
    """Return a stand-in for a package of FlashAttention 3 with its signature."""

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        seqused_q: Tensor | None = None,
        seqused_k: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        qv: Tensor | None = None,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
        window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        num_splits: int = 1,
        pack_gqa: bool | None = None,
        deterministic: bool = False,
        sm_margin: int = 0,
        return_attn_probs: bool = False,
    ) -> Any:
        assert seqused_k is not None
        assert softmax_scale is not None
        window = (window_size[0], 0 if causal else window_size[1])
        tables = cu_seqlens_q, cu_seqlens_k, seqused_k
        out, lse = varlen_attention(
            q, k, v, *tables, softmax_scale, window, lse_of_nothing=-torch.inf
        )
        return (out, lse) if return_attn_probs else out

    module = ModuleType(name)
    module.__dict__.update(flash_attn_varlen_func=flash_attn_varlen_func)
    return module


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    package = module.__name__.partition(".")[0]
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture(autouse=True)
def forget() -> None:
    failure_of.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "module"),
    [
        (FLASH_ATTN, flash_attn_module()),
        (HOPPER, hopper_module("flash_attn_interface")),
        (FA3_FWD, hopper_module("fa3_fwd_interface")),
    ],
    ids=["flash_attn", "hopper", "fa3_fwd"],
)
def test_packages_get_arguments_in_their_order(
    kernel: FlashKernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, module)
    assert error_of_example(kernel, SHAPE) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_pytorchs_operator_takes_the_arguments(causal: bool) -> None:
    """On the meta device, which knows its shapes."""
    meta = torch.device("meta")
    sequences = Sequences.of(
        3,
        torch.tensor([5, 0]),
        torch.tensor([4, 0]),
        meta,
        longest=4,
        causal=causal,
        window=2 if causal else None,
    )
    query = torch.empty(6, 4, 8, device=meta, dtype=torch.bfloat16)
    keys = torch.empty(20, 2 if causal else 4, 8, device=meta, dtype=torch.bfloat16)
    out, lse = TORCH.attend(query, keys, keys, sequences, 0.5)
    assert out.shape == query.shape
    assert lse.shape == (4, 6)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 5, 8, 64, 128])
def test_a_cpu_has_a_kernel_for_every_precision(dtype: torch.dtype, width: int) -> None:
    assert find_kernel([LayerShape(CPU, dtype, width, has_window=True)]) is KERNEL


@pytest.mark.parametrize("kinds", [["meta"], ["cpu", "meta"]])
def test_other_devices_have_none(kinds: list[str]) -> None:
    shapes = [SHAPE._replace(device=torch.device(kind)) for kind in kinds]
    with pytest.raises(NoKernelError, match=" and ".join(kinds)):
        find_kernel(shapes)


def test_a_gpu_has_none_for_float32(caplog: pytest.LogCaptureFixture) -> None:
    """No installed package is tried, so none is reported as unusable."""
    with pytest.raises(NoKernelError, match="bfloat16 and float16 only"):
        find_kernel([LayerShape(torch.device("cuda"), torch.float32, 64, has_window=False)])
    assert not caplog.messages


def test_a_kernel_must_serve_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(query: Tensor, *args: Any) -> Attended:
        if query.shape[-1] > 8:
            raise RuntimeError("head dimension at most 8")
        return KERNEL.attend(query, *args)

    limited = FlashKernel("narrow", narrow)
    monkeypatch.setitem(KERNELS, "cpu", (limited,))
    assert find_kernel([SHAPE]) is limited
    with pytest.raises(NoKernelError, match=r"narrow fails .* dimension at most 8"):
        find_kernel([SHAPE, SHAPE._replace(width=16)])


def raising(error: Exception) -> Callable[..., Attended]:
    def attend(*_: Any) -> Attended:
        raise error

    return attend


@pytest.mark.parametrize(
    "error",
    [
        ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c10"),
        OSError("libcudart.so.12: cannot open shared object file"),
        TypeError("unexpected keyword argument 'seqused_k'"),
        RuntimeError("only supports Hopper GPUs"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unusable_package_gives_one_warning_and_the_next_kernel(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = FlashKernel("flash-attn", raising(error), is_package=True)
    monkeypatch.setitem(KERNELS, "cpu", (broken, KERNEL))
    with caplog.at_level(logging.WARNING):
        assert find_kernel([SHAPE]) is KERNEL
        assert find_kernel([SHAPE]) is KERNEL
    (message,) = caplog.messages
    assert message.startswith("flash-attn is installed but fails here")
    assert str(error) in message


def test_a_missing_package_is_no_news(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(KERNELS, "cpu", (HOPPER, FA3_FWD, FLASH_ATTN, KERNEL))
    with caplog.at_level(logging.DEBUG, logger="specresearch"):
        assert find_kernel([SHAPE]) is KERNEL
    assert not caplog.messages


def _zero_of_nothing(*args: Any) -> Attended:
    out, lse = KERNEL.attend(*args)
    return out, lse.masked_fill(lse.isneginf(), 0.0)


@pytest.mark.parametrize("nothing", [torch.inf, -torch.inf])
def test_the_log_sum_exp_of_nothing_may_have_either_sign(
    nothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(*args: Any) -> Attended:
        out, lse = KERNEL.attend(*args)
        return out, lse.masked_fill(lse.isneginf(), nothing)

    kernel = FlashKernel("right", attend)
    monkeypatch.setitem(KERNELS, "cpu", (kernel,))
    assert find_kernel([SHAPE]) is kernel


def _transposed(*args: Any) -> Attended:
    out, lse = KERNEL.attend(*args)
    return out, lse.T.reshape(lse.shape)


def _without_window(*args: Any) -> Attended:
    return KERNEL.attend(*args[:3], replace(args[3], window=None), args[4])


def _from_the_top(*args: Any) -> Attended:
    """Align a causal mask with the first key, not with the last one."""
    sequences: Sequences = args[3]
    if not sequences.causal:
        return KERNEL.attend(*args)
    table = sequences.table.clone()
    table[2].clamp_(max=sequences.num_queries)
    return KERNEL.attend(*args[:3], replace(sequences, table=table), args[4])


def _in_order(*args: Any) -> Attended:
    """Ignore where the stretches begin."""
    table = args[3].table.clone()
    table[1] = 0
    return KERNEL.attend(*args[:3], replace(args[3], table=table), args[4])


def _not_a_number(*args: Any) -> Attended:
    out, lse = KERNEL.attend(*args)
    return out * torch.nan, lse


def test_negative_control_a_masked_kernel_that_computes_wrongly_serves_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attend_masked = kernel_choice.attend_masked

    def without_mask(*args: Any) -> Attended:
        query, keys, values, bias, scale = args
        return attend_masked(query, keys, values, torch.zeros_like(bias), scale)

    monkeypatch.setattr(kernel_choice, "attend_masked", without_mask)
    with pytest.raises(NoKernelError, match="a small example is wrong by"):
        find_kernel([SHAPE])


@pytest.mark.parametrize(
    "attend",
    [
        _zero_of_nothing,
        _transposed,
        _without_window,
        _from_the_top,
        _in_order,
        _not_a_number,
    ],
    ids=lambda attend: attend.__name__.strip("_"),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_negative_control_a_kernel_that_computes_wrongly_is_not_used(
    attend: Callable[..., Attended], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KERNELS, "cpu", (FlashKernel("wrong", attend),))
    with pytest.raises(NoKernelError, match="a small example is wrong by"):
        find_kernel([SHAPE._replace(dtype=dtype)])
