"""When a pass skips padding, and when rows get attention calls of their own."""

import pytest
import torch

from specresearch.models.ragged import Packing

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("lengths", "starts", "alone"),
    [
        ([6] + [1] * 9, [300] * 10, {0}),  # one long draft among rows without one
        (
            [4, 3] + [1] * 4,
            [1000] + [50] * 5,
            set(range(6)),
        ),  # one long context: padding to it costs more than calls do
        ([6, 1, 1, 1], [10] * 4, None),  # so little to read that a call costs more
        ([4, 2, 2, 4], [300] * 4, None),  # little is padded
        ([1] * 8, [1000] + [50] * 7, set(range(8))),  # no drafts, one long context
    ],
)
def test_padded_batches_are_packed(
    lengths: list[int], starts: list[int], alone: set[int] | None
) -> None:
    packing = Packing.if_worthwhile(lengths, starts, max(lengths), CPU)
    assert packing is not None
    assert packing.alone == alone
    values = torch.randn(len(lengths), max(lengths), 3)
    unpacked = packing.unpack(packing.pack(values))
    for b, length in enumerate(lengths):
        assert torch.equal(unpacked[b, :length], values[b, :length])
        assert not unpacked[b, length:].any()


def test_batches_with_little_padding_are_not_packed() -> None:
    assert Packing.if_worthwhile([3, 3, 3], [300] * 3, 3, CPU) is None
    assert Packing.if_worthwhile([1] * 8, [1000] + [50] * 7, 1, CPU, keep_full=True) is None


def test_attention_is_a_single_call_on_other_devices() -> None:
    packing = Packing.if_worthwhile([6] + [1] * 9, [300] * 10, 6, torch.device("meta"))
    assert packing is not None
    assert packing.alone is None
