"""Slots of a cache, one for each running request."""

from collections.abc import Sequence


class Slots:
    """Keeps track of which slots are free and how many tokens each slot holds.

    Attributes:
        lengths: Committed tokens of every slot.
    """

    def __init__(self, num_slots: int) -> None:
        self._clear(num_slots)

    def _clear(self, num_slots: int) -> None:
        self.lengths = [0] * num_slots
        self._free = set(range(num_slots))

    @property
    def in_use(self) -> bool:
        return len(self._free) < len(self.lengths)

    def acquire(self, among: range | None = None) -> int | None:
        """Return the lowest free slot, emptied; None if all are taken.

        Args:
            among: The slots to choose from; None means all of them.
        """
        free = self._free if among is None else self._free.intersection(among)
        slot = min(free, default=None)
        if slot is not None:
            self._free.remove(slot)
            self.lengths[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        self._free.add(slot)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Drop all but the first `lengths[b]` tokens of each slot."""
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= self.lengths[slot]
            self.lengths[slot] = length
