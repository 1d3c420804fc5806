"""Reuse of prefixes: a prompt begins with the columns that an earlier request has left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specresearch.models.slot_model import SlotModel
from specresearch.proposers import Proposer
from specresearch.request import RequestState

SHORTEST = 16  # tokens; most prompts of a model begin with the same few
FIRST = 0  # the slot


@dataclass(frozen=True)
class _Kept:
    """What a free slot holds.

    Attributes:
        stamp: The slot's when its request left; another one means that somebody else had it since.
    """

    tokens: Sequence[int]
    stamp: int


class PrefixCache:
    """Gives a request the slot, and the columns, that save it most prefill.

    A slot keeps its columns until another request needs it; those that were left or used longest
    ago go first. Columns of running requests are copied. So are those of a free slot that hold more
    than the new request can use, unless no other slot is free.

    Args:
        slots: Those that may be given; None: any.
        prefers_first: Give a request that finds nobody running the first slot, and move what that
            holds: a compiled pass runs over the first slot alone or over all of them.
    """

    def __init__(
        self,
        target: SlotModel,
        proposer: Proposer,
        slots: range | None,
        *,
        prefers_first: bool = False,
    ) -> None:
        self.target, self.proposer, self.slots = target, proposer, slots
        self.prefers_first = prefers_first
        self._kept: dict[int, _Kept] = {}  # in order of use

    def keep(self, row: RequestState) -> None:
        """Remember the columns of a request that is about to release its slot."""
        self._kept.pop(row.slot, None)
        self._kept[row.slot] = _Kept(self._cached(row), self.target.stamps[row.slot])

    def acquire(self, row: RequestState, running: Sequence[RequestState]) -> int | None:
        """Give the request a slot with the longest prefix that there is; None if none is free."""
        free = self.target.free_slots(self.slots)
        if not free:
            return None
        self._drop_overwritten()
        held = {
            other.slot: self._cached(other)
            for other in running
            if other.reused_from in (None, other.slot)  # others are yet to be copied
        }
        held |= {slot: kept.tokens for slot, kept in self._kept.items() if slot in free}
        source, num_reused = self._longest(row, held)
        if source in self._kept:
            self._kept[source] = self._kept.pop(source)
        slot = self._least_wanted(free)
        if source in free and len(held[source]) < num_reused + SHORTEST:
            slot = source
        if self.prefers_first and not running and FIRST in free and slot != FIRST:
            self._kept.pop(slot, None)  # taken over or given up
            self._move(FIRST, self._least_wanted(free - {source}))
            slot = FIRST
        self._kept.pop(slot, None)
        self.target.acquire(range(slot, slot + 1))
        self.target.lengths[slot] = num_reused
        if not num_reused:
            self.proposer.reuse(slot, slot, 0)
        row.num_reused, row.reused_from = num_reused, source if num_reused else None
        row.total_reused += num_reused
        return slot

    def _cached(self, row: RequestState) -> Sequence[int]:
        return row.tokens[: self.target.lengths[row.slot]]

    def _drop_overwritten(self) -> None:
        stamps = self.target.stamps
        for slot, kept in list(self._kept.items()):
            if slot >= len(stamps) or kept.stamp != stamps[slot]:
                del self._kept[slot]

    def _least_wanted(self, free: set[int]) -> int:
        empty = free - self._kept.keys()
        return min(empty) if empty else next(slot for slot in self._kept if slot in free)

    def _move(self, source: int, slot: int) -> None:
        """Move what a free slot holds to another free one, without a change of the order of use."""
        if source == slot or source not in self._kept:
            return
        tokens = self._kept[source].tokens
        self.target.cache.copy(source, slot, len(tokens))
        self.target.lengths[slot] = len(tokens)
        self.proposer.reuse(slot, source, self.proposer.num_reusable(source, len(tokens)))
        moved = _Kept(tokens, self.target.stamps[slot])
        self._kept = {
            slot if held == source else held: moved if held == source else kept
            for held, kept in self._kept.items()
        }

    def _longest(self, row: RequestState, held: Mapping[int, Sequence[int]]) -> tuple[int, int]:
        """Return the slot with the longest usable prefix, and its length, which may be 0."""
        # The root is verified, and what drafts by hidden states needs the one before it.
        most = len(row.tokens) - (2 if self.proposer.hidden_layers else 1)
        tokens = row.tokens[:most]
        best = -1, 0
        for slot, cached in held.items():
            num = self.proposer.num_reusable(slot, num_common(tokens, cached))
            if num >= SHORTEST and num > best[1]:
                best = slot, num
        return best


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix, or 0 if it is shorter than `SHORTEST`."""
    if first[:SHORTEST] != second[:SHORTEST]:
        return 0
    width = min(len(first), len(second))
    differs = np.array(first[:width]) != np.array(second[:width])
    return int(differs.argmax()) if differs.any() else width
