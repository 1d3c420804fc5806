"""Slots of a cache, one for each running request."""


class Slots:
    """Which slots are free, and how many tokens each of the others holds.

    lengths: committed tokens of every slot.
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
        """The lowest free slot (of those `among` which it must be), emptied; None when all are taken."""
        slot = min(self._free if among is None else self._free.intersection(among), default=None)
        if slot is not None:
            self._free.remove(slot)
            self.lengths[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        self._free.add(slot)
