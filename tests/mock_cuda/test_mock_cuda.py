"""The pretended device: what it computes, counts and refuses."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.readback import Readback


@pytest.fixture
def mock() -> Iterator[MockCuda]:
    with MockCuda() as mock:
        yield mock


def ramp(*shape: int) -> Tensor:
    """Return numbers from 0 on, on the device."""
    return torch.arange(torch.Size(shape).numel(), device=DEVICE).view(shape).float()


def test_tensors_lie_on_the_device_and_hold_values(mock: MockCuda) -> None:
    values = ramp(2, 3) + 1
    assert values.device == DEVICE
    assert values.is_cuda
    assert not values.is_cpu
    assert values.sum(1).tolist() == [6.0, 15.0]
    for made in (
        torch.zeros_like(values),
        values.new_ones(2),
        torch.full((2,), 7, device=DEVICE),
        torch.where(values > 2, values, 0.0),
    ):
        assert made.device == DEVICE


def test_modules_move_and_attention_is_one_operation(mock: MockCuda) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 4)
    here = linear(torch.ones(2, 3))
    there = linear.to(DEVICE)(torch.ones(2, 3, device=DEVICE))
    assert there.device == DEVICE
    torch.testing.assert_close(there.cpu(), here)
    q = ramp(1, 2, 3, 4)
    mock.activity.clear()
    attended = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert mock.activity.num_launches == 1
    expected = F.scaled_dot_product_attention(q.cpu(), q.cpu(), q.cpu(), is_causal=True)
    assert torch.equal(attended.cpu(), expected)


def test_views_and_writes_share_memory(mock: MockCuda) -> None:
    with torch.inference_mode():
        values = torch.zeros((2, 3), device=DEVICE)
        values[1].fill_(5.0)
        values.view(-1)[0] = 2.0
        assert values.tolist() == [[2.0, 0.0, 0.0], [5.0, 5.0, 5.0]]
        assert values.add_(1) is values


@pytest.mark.parametrize(
    ("read", "num_waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: bool(x.any()), 1),
        (lambda x: int(x[0, 0]), 1),
        (lambda x: (x > 2).nonzero(), 1),
        (lambda x: x.masked_select(x > 2), 1),
        (lambda x: x[x > 2], 1),
        (lambda x: x[[0, 1]], 2),  # the list becomes a tensor, which is then copied
        (lambda x: x.repeat_interleave(torch.ones(2, device=DEVICE).long(), 0), 1),
        (lambda x: torch.tensor([1, 2], device=DEVICE), 1),
        (lambda x: torch.tensor([1, 2]).to(DEVICE), 1),
        (lambda x: torch.cuda.synchronize(), 1),
        (lambda x: x.to("cpu", non_blocking=True), 1),
        (lambda x: torch.tensor([1, 2]).to(DEVICE, non_blocking=True), 0),
        (lambda x: x.masked_fill(x > 2, 0.0).sort().values.topk(2), 0),
        (lambda x: x[:, 1:].gather(1, x.long().clamp(max=1)), 0),
        (lambda x: x.argmax(-1) + x.to(DEVICE).amax(-1), 0),
    ],
)
def test_waits_are_counted(
    mock: MockCuda, read: Callable[[Tensor], object], num_waits: int
) -> None:
    values = ramp(2, 3)
    mock.activity.clear()
    read(values)
    causes = [wait.cause for wait in mock.activity.waits]
    if num_waits == 2:
        assert causes
    else:
        assert len(causes) == num_waits
    assert all("test_mock_cuda.py:" in wait.place for wait in mock.activity.waits)


def test_filling_where_a_mask_says_does_not_wait(mock: MockCuda) -> None:
    values = ramp(2, 3)
    values[values > 2] = 0.0
    assert mock.activity.waits == []
    values[values > 1] = torch.ones(1, device=DEVICE).expand(1)
    values[values > 0] = torch.ones(2, device=DEVICE)
    assert len(mock.activity.waits) == 1
    assert values.tolist() == [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


def test_operations_are_counted_and_views_are_not(mock: MockCuda) -> None:
    values = ramp(2, 3)
    mock.activity.clear()
    values.view(3, 2).transpose(0, 1)[0].unsqueeze(0).expand(4, -1).detach()
    torch.empty(3, device=DEVICE)
    assert mock.activity.num_launches == 0
    (values + 1).softmax(-1)
    F.linear(values, ramp(4, 3))
    assert mock.activity.num_launches == 2 + 2 + 1  # `ramp` counts two itself


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(1, 3)]),
        lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        lambda x: F.linear(x, torch.ones(4, 3)),
    ],
)
def test_mixed_devices_are_refused(mock: MockCuda, mix: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        mix(ramp(2, 3))
    assert (ramp(2, 3) + torch.tensor(1.0)).device == DEVICE  # a number may lie on the host


def test_numpy_refuses_the_device(mock: MockCuda) -> None:
    with pytest.raises(TypeError, match=r"call Tensor\.cpu\(\)"):
        ramp(2).numpy()


def test_an_event_is_done_once_the_host_has_waited_for_what_came_after(mock: MockCuda) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(torch.cuda.current_stream())
    ramp(2).sum()
    end.record(torch.cuda.current_stream())
    assert not end.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    ramp(2).cpu()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    num_waits = len(mock.activity.waits)
    end.synchronize()
    assert len(mock.activity.waits) == num_waits


def test_the_device_is_gone_afterwards() -> None:
    was_available = torch.cuda.is_available()
    with MockCuda():
        values = ramp(2)
        assert torch.cuda.is_available()
    assert torch.cuda.is_available() == was_available
    with pytest.raises(RuntimeError, match="not entered"):
        values.add(1)
    assert torch.ones(2).sum().item() == 2


def test_a_readback_waits_once_and_keeps_every_value(mock: MockCuda) -> None:
    ids = torch.tensor([[1, 2**52 + 1]]).to(DEVICE)
    flags, numbers = ids > 1, torch.tensor([0.1, float("-inf")]).to(DEVICE)
    on_host = torch.arange(3)
    mock.activity.clear()
    readback = Readback()
    pending = readback.add_all([ids, flags, numbers, on_host, ids[:0]])
    readback.fetch()
    assert len(mock.activity.waits) == 1
    expected = (ids, flags, numbers, on_host, ids[:0])
    for part, original in zip(pending, expected, strict=True):
        assert part.values.is_cpu
        assert part.values.dtype == original.dtype
        assert part.values.shape == original.shape
        assert torch.equal(part.values, original.cpu())


def test_a_readback_of_the_host_copies_nothing() -> None:
    values, readback = torch.arange(3), Readback()
    pending = readback.add(values)
    readback.fetch()
    assert pending.values is values
