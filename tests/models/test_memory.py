import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from specresearch.models.memory import peak_bytes, weight_bytes
from specresearch.models.packed import SMALLEST_WEIGHT, PackedLinear


def test_parameters_and_buffers_count_once() -> None:
    layer = nn.Linear(10, 20)
    norm = nn.BatchNorm1d(4)
    buffers = 2 * 4 * 4 + 8  # running mean and variance, and a counter
    assert weight_bytes([layer]) == 4 * 220
    assert weight_bytes([layer, norm]) == 4 * 220 + 4 * 8 + buffers
    tied = nn.Linear(10, 20, bias=False)
    tied.weight = layer.weight
    assert weight_bytes([layer, tied]) == 4 * 220
    assert weight_bytes([tied, nn.Linear(2, 2, bias=False)], besides=[layer]) == 16


def test_wrapped_weights_count_as_what_they_hold() -> None:
    """As torchao's do, whose own storage is empty."""
    layer = nn.Linear(10, 20, bias=False)
    halves = TwoTensor(torch.zeros(20, 10), torch.zeros(20, 10))
    layer.weight = nn.Parameter(halves)
    assert weight_bytes([layer]) == 2 * 4 * 200


def test_a_packed_copy_counts_from_its_first_use() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("needs oneDNN")
    width = int(SMALLEST_WEIGHT**0.5)
    layer = PackedLinear(nn.Linear(width, width, bias=False))
    assert weight_bytes([layer]) == 4 * width**2
    with torch.no_grad():
        layer(torch.zeros(1, width))
    assert weight_bytes([layer]) == 8 * width**2


def test_the_peak_does_not_fall() -> None:
    device = torch.device("cpu")
    before = peak_bytes(device)
    kept = torch.ones(before // 4 + 2**24)  # of four bytes each
    assert peak_bytes(device) - before > 2**24
    held = peak_bytes(device)
    del kept
    assert peak_bytes(device) >= held
