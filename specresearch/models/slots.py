"""Slots of a cache, one for each running request."""

import heapq


class Slots:
    """Which slots are free, and how many tokens each of the others holds.

    lengths: committed tokens of every slot.
    """

    def __init__(self, num_slots: int) -> None:
        self._clear(num_slots)

    def _clear(self, num_slots: int) -> None:
        self.lengths = [0] * num_slots
        self._free = list(range(num_slots))  # a heap

    @property
    def in_use(self) -> bool:
        return len(self._free) < len(self.lengths)

    def acquire(self) -> int | None:
        """The lowest free slot, emptied; None when all are taken."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self.lengths[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        heapq.heappush(self._free, slot)
