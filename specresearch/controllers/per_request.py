"""What a controller remembers of each request for as long as it runs."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from specresearch.request import RequestState

State = TypeVar("State")


class PerRequest(Generic[State]):
    """A state for every request, made when it is first met; it goes when the request does, and nobody has to say so.

    met: the states of the last rows met, in their order, for the record of that step; the same list for as long as the same rows
    are met.
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self.clear()

    def __len__(self) -> int:
        return len(self._states)

    def meet(self, rows: Sequence[RequestState]) -> list[State]:
        """The states of the rows of the step to come."""
        before = self._rows_met
        if len(before) != len(rows) or not all(map(is_, (row() for row in before), rows)):
            self.met = [
                self._states[row] if row in self._states else self._first_met(row) for row in rows
            ]
            self._rows_met = [ref(row) for row in rows]
        return self.met

    def _first_met(self, row: RequestState) -> State:
        self._states[row] = state = self._make()
        return state

    def clear(self) -> None:
        self._states: WeakKeyDictionary[RequestState, State] = WeakKeyDictionary()
        self._rows_met: list[ref[RequestState]] = []
        self.met: list[State] = []
