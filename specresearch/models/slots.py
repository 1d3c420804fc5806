"""Slots of a cache, one for each running request."""

from collections.abc import Sequence
from itertools import count

_STAMPS = count()


class Slots:
    """Keeps track of which slots are free and how many tokens each slot holds.

    Attributes:
        lengths: Committed tokens of every slot.
        stamps: For every slot a number that changes when somebody acquires it, or when the cache is
            allocated anew: while it stays, so do the first columns of a slot that was released.
    """

    def __init__(self, num_slots: int) -> None:
        self._clear(num_slots)

    def _clear(self, num_slots: int) -> None:
        self.lengths = [0] * num_slots
        self.stamps = [next(_STAMPS) for _ in range(num_slots)]
        self._free = set(range(num_slots))

    @property
    def in_use(self) -> bool:
        return len(self._free) < len(self.lengths)

    def free_slots(self, among: range | None = None) -> set[int]:
        """Return the slots that nobody has acquired."""
        return set(self._free if among is None else self._free.intersection(among))

    def acquire(self, among: range | None = None) -> int | None:
        """Return the lowest free slot, emptied; None if all are taken.

        Args:
            among: The slots to choose from; None means all of them.
        """
        slot = min(self.free_slots(among), default=None)
        if slot is not None:
            self._free.remove(slot)
            self.lengths[slot] = 0
            self.stamps[slot] = next(_STAMPS)
        return slot

    def release(self, slot: int) -> None:
        self._free.add(slot)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Drop all but the first `lengths[b]` tokens of each slot."""
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= self.lengths[slot]
            self.lengths[slot] = length
