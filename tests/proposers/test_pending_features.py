import torch
from torch import Tensor

from specresearch.proposers.pending_features import PendingFeatures

H = 3


def numbered(*shape: int) -> Tensor:
    """Return features that are all different."""
    return torch.arange(1.0, 1 + H * torch.Size(shape).numel()).view(*shape, H)


def test_features_come_back_in_order_whatever_the_batch_was() -> None:
    """Rows join, leave and change places; many steps pass without a draft."""
    generator = torch.Generator().manual_seed(1)
    pending, expected = PendingFeatures(), {slot: [] for slot in range(6)}
    for step in range(200):
        slots = torch.randperm(6, generator=generator)[: 1 + step % 4].tolist()
        features = torch.randn((len(slots), 3, H), generator=generator)
        counts = torch.randint(1, 4, (len(slots),), generator=generator).tolist()
        pending.add(slots, features, counts)
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            expected[slot] += list(features[b, :count])
            assert pending.count(slot) == len(expected[slot])
        if step % 17 == 16:
            taken = torch.randperm(6, generator=generator)[:3].tolist()
            width = max(map(pending.count, taken))
            rows = pending.pop(taken, width)
            assert rows is not None
            assert rows.shape == (3, width, H)
            assert rows.isfinite().all()
            for row, slot in zip(rows, taken, strict=True):
                for feature, wanted in zip(row, expected[slot], strict=False):
                    assert torch.equal(feature, wanted)
                expected[slot] = []


def test_a_slot_is_known_until_it_is_dropped() -> None:
    pending = PendingFeatures()
    assert pending.pop([0], 1) is None
    pending.add([2, 4], numbered(2, 1), [1, 0])
    assert pending.is_known(2)
    assert not pending.is_known(4)  # a prompt of one token
    pending.pop([2], 1)
    assert pending.is_known(2)
    assert pending.count(2) == 0
    pending.drop([2])
    assert not pending


def test_padding_stays_finite_after_a_failure() -> None:
    pending = PendingFeatures()
    pending.add([1], torch.full((1, 2, H), float("nan")), [2])
    pending.scrub([1])
    pending.drop([1])
    pending.add([1], numbered(1, 1), [1])
    rows = pending.pop([1], 2)
    assert rows is not None
    assert rows.isfinite().all()
