"""What a controller remembers of each request for as long as it runs."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from specresearch.request import RequestState

State = TypeVar("State")


class PerRequest(Generic[State]):
    """One state per request, created on first use and dropped with the request.

    Attributes:
        selected: States of the last selected rows, in their order. It stays the same list for as
            long as the rows stay the same.
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self.clear()

    def __len__(self) -> int:
        return len(self._states)

    def select(self, rows: Sequence[RequestState]) -> list[State]:
        """Return the states of the rows of the next step."""
        before = [row() for row in self._selected_rows]
        is_same = len(before) == len(rows) and all(map(is_, before, rows))
        if not is_same:
            # Most rows stay, and a weak dictionary is slow to ask.
            known = dict(zip(map(id, before), self.selected, strict=True))
            self.selected = [known.get(id(row)) or self._state(row) for row in rows]
            self._selected_rows = [ref(row) for row in rows]
        return self.selected

    def clear(self) -> None:
        self._states: WeakKeyDictionary[RequestState, State] = WeakKeyDictionary()
        self._selected_rows: list[ref[RequestState]] = []
        self.selected: list[State] = []

    def _state(self, row: RequestState) -> State:
        if row not in self._states:
            self._states[row] = self._make()
        return self._states[row]
