"""When a pass leaves padding out, and when attention does."""

import pytest
import torch

from specresearch.models.ragged import Packing

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("lengths", "starts", "by_row"),
    [
        ([6, 1, 1, 1], [300] * 4, True),  # one long draft among short ones
        ([6, 1, 1, 1], [10] * 4, False),  # so little to read that a call costs more
        ([4, 2, 2, 4], [300] * 4, False),  # little is left out of attention
        ([1] * 4, [1000, 100, 100, 100], True),  # no drafts, one long context
    ],
)
def test_packed(lengths: list[int], starts: list[int], by_row: bool) -> None:
    packing = Packing.if_worthwhile(lengths, starts, max(lengths), CPU)
    assert packing is not None
    assert packing.by_row == by_row
    values = torch.randn(len(lengths), max(lengths), 3)
    unpacked = packing.unpack(packing.pack(values))
    for b, length in enumerate(lengths):
        assert torch.equal(unpacked[b, :length], values[b, :length])
        assert not unpacked[b, length:].any()


def test_not_packed_where_nothing_is_gained() -> None:
    assert Packing.if_worthwhile([3, 3, 3], [300] * 3, 3, CPU) is None
    assert Packing.if_worthwhile([1, 1], [1000, 10], 1, CPU, keep_full=True) is None


def test_on_other_devices_attention_stays_one_call() -> None:
    packing = Packing.if_worthwhile([6, 1, 1, 1], [300] * 4, 6, torch.device("meta"))
    assert packing is not None
    assert not packing.by_row
