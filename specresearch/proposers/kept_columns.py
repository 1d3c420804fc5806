"""The columns that a drafter's model still holds of requests that have left."""

from collections.abc import Sequence

from specresearch.models.slot_model import SlotModel
from specresearch.request import RequestState


class KeptColumns:
    """Empties the slots of a model without forgetting what they hold.

    Nothing is overwritten before another request is fed, so a request with the same first tokens
    can take them over.
    """

    def __init__(self, model: SlotModel) -> None:
        self.model = model
        self._kept: dict[int, int] = {}

    def length(self, slot: int) -> int:
        """Return how many columns the slot holds of the request that has it or had it last."""
        return self.model.lengths[slot] or self._kept.get(slot, 0)

    def leave(self, slots: Sequence[int]) -> None:
        """Empty slots whose requests have left."""
        for slot in slots:
            self._kept[slot] = self.model.lengths[slot]
        self.model.truncate(slots, [0] * len(slots))

    def reuse(self, slot: int, source: int, num_columns: int) -> None:
        """Keep the first columns of `source` in `slot`, as far as there are so many."""
        num_columns = min(num_columns, self.length(source))
        if slot != source:
            self.model.cache.copy(source, slot, num_columns)
        self._kept[slot] = num_columns

    def enter(self, rows: Sequence[RequestState]) -> None:
        """Fill the slots of new requests with what was kept of their reused tokens."""
        for row in rows:
            self.fill(row.slot, row.num_reused)

    def fill(self, slot: int, num_columns: int) -> None:
        """Fill the slot of a new request with at most so many of the columns that were kept."""
        self.model.lengths[slot] = min(num_columns, self._kept.pop(slot, 0))
