"""The columns that a drafter's model still holds of requests that have left."""

from collections.abc import Sequence

from specresearch.models.slot_model import SlotModel
from specresearch.request import RequestState


class KeptColumns:
    """Lets a request take over what its slot, or another one, holds of the same first tokens.

    A slot keeps its columns and their number when its request leaves. The number matters even
    while nobody has the slot: a compiled pass writes behind the last column of every slot.
    """

    def __init__(self, model: SlotModel) -> None:
        self.model = model
        self._entered: set[int] = set()

    def length(self, slot: int) -> int:
        """Return how many columns the slot holds of the request that has it or had it last."""
        return self.model.lengths[slot]

    def leave(self, slots: Sequence[int]) -> Sequence[int]:
        """Empty the slots of requests that leave before they have entered, and return them.

        What these slots hold is an earlier request's.
        """
        emptied = sorted(set(slots) - self._entered)
        for slot in emptied:
            self.model.lengths[slot] = 0
        self._entered.difference_update(slots)
        return emptied

    def reuse(self, slot: int, source: int, num_columns: int) -> None:
        """Keep the first columns of `source` in `slot`, as far as there are so many."""
        num_columns = min(num_columns, self.length(source))
        if slot != source:
            self.model.cache.copy(source, slot, num_columns)
        self.model.lengths[slot] = num_columns

    def enter(self, rows: Sequence[RequestState]) -> None:
        """Leave the slots of new requests what they hold of reused tokens, and empty the rest."""
        for row in rows:
            self.fill(row.slot, row.num_reused)

    def fill(self, slot: int, num_columns: int) -> None:
        """Leave the slot of a new request at most so many columns."""
        self._entered.add(slot)
        self.model.lengths[slot] = min(num_columns, self.length(slot))
