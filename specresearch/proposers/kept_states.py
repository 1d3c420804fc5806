"""Hidden states of committed tokens, by slot, until a drafter reads them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.proposal import upload

JOIN_EVERY = 64  # states of a row in the newer steps, after which they are copied
_MOST_COUNTED = 4  # states of one step that count for this, since a prompt has many more
_PART_SIZE = 3  # numbers of a newer part

FlatLayers = tuple[Float[Tensor, "N _"], ...]


class _Part(NamedTuple):
    """States in a row: those from `first` on of the flattened batch that they came in."""

    layers: FlatLayers
    first: int
    count: int


class KeptStates:
    """States of each slot, in order.

    The tensors of a step are kept by reference, since most of them are read by the next step or
    never. Where the states of a slot lie is known on the host, so that one gather reads many rows.
    From time to time, what several steps have left is copied, which lets go of the other rows of
    those steps.

    Steps without drafts should cost next to nothing, even with many rows. So a step leaves three
    numbers a row, and no object that the garbage collector would look at, until its states are
    copied or read.
    """

    def __init__(self) -> None:
        self._older: defaultdict[int, list[_Part]] = defaultdict(list)
        # Of each newer part the place of its layers in `_sources`, its first state and its count.
        self._newer: defaultdict[int, list[int]] = defaultdict(list)
        self._sources: list[FlatLayers] = []
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._num_held = 0

    def __bool__(self) -> bool:
        return any(self._counts.values())

    def count(self, slot: int) -> int:
        """Return how many states of a slot are kept."""
        return self._counts[slot]

    def add(
        self,
        slots: Sequence[int],
        layers: Sequence[Float[Tensor, "B D _"]],
        counts: Sequence[int],
        first: Sequence[int] | None = None,
    ) -> None:
        """Append `counts[b]` states of every row from `first[b]` on, by default from its first.

        The tensors must not be modified afterwards.
        """
        width = layers[0].shape[1]
        source = len(self._sources)
        self._sources.append(tuple([layer.flatten(0, 1) for layer in layers]))
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            if count:
                begin = b * width + (0 if first is None else first[b])
                self._newer[slot] += (source, begin, count)
                self._counts[slot] += count
        self._num_held += min(width, _MOST_COUNTED)
        if self._num_held >= JOIN_EVERY:
            self._join()

    def read(self, slots: Sequence[int]) -> tuple[Float[Tensor, "B W _"], ...]:
        """Return all states of these slots, none of which may be empty, padded as in `take`."""
        return _padded([self._parts(slot) for slot in slots])

    def take(
        self, slots: Sequence[int], counts: Sequence[int]
    ) -> tuple[Float[Tensor, "B W _"], ...]:
        """Remove and return the first `counts[b]` states of every slot, in each layer.

        Rows are padded with their own last state.

        Raises:
            ValueError: If a slot has fewer, or none are asked for.
        """
        taken = []
        for slot, count in zip(slots, counts, strict=True):
            if not 0 < count <= self.count(slot):
                raise ValueError(f"slot {slot} has {self.count(slot)} states, not {count}")
            taken.append(self._pop(slot, count))
        return _padded(taken)

    def keep(self, slot: int, count: int) -> None:
        """Keep at most the first `count` states of a slot."""
        count = min(count, self.count(slot))
        kept = self._pop(slot, count)
        self.drop([slot])
        self._older[slot], self._counts[slot] = kept, count

    def copy(self, source: int, slot: int) -> None:
        """Give a slot the states of another one."""
        self.drop([slot])
        self._older[slot], self._counts[slot] = list(self._parts(source)), self._counts[source]

    def drop(self, slots: Sequence[int]) -> None:
        """Forget the states of these slots."""
        for slot in slots:
            for by_slot in (self._older, self._newer, self._counts):
                by_slot.pop(slot, None)
        self._let_go()

    def _parts(self, slot: int) -> list[_Part]:
        """Return the parts of a slot, the newer ones as objects from now on."""
        older, newer = self._older[slot], self._newer.pop(slot, [])
        for source, first, count in zip(newer[::3], newer[1::3], newer[2::3], strict=True):
            older.append(_Part(self._sources[source], first, count))
        self._let_go()
        return older

    def _let_go(self) -> None:
        """Forget the steps of which no newer part is left."""
        if not self._newer:
            self._sources.clear()
            self._num_held = 0

    def _pop(self, slot: int, count: int) -> list[_Part]:
        """Remove and return the first states of a slot."""
        popped, parts = [], self._parts(slot)
        self._counts[slot] -= count
        while count:
            part = parts.pop(0)
            num = min(count, part.count)
            popped.append(part._replace(count=num))
            if num < part.count:
                parts.insert(0, part._replace(first=part.first + num, count=part.count - num))
            count -= num
        return popped

    def _join(self) -> None:
        """Copy what several steps have left of a slot."""
        slots = [slot for slot, parts in self._newer.items() if len(parts) > _PART_SIZE]
        if slots:
            self._copy(slots)
        for slot in list(self._newer):
            self._parts(slot)
        self._let_go()

    def _copy(self, slots: Sequence[int]) -> None:
        """Copy the newer states of these slots into one tensor for each layer."""
        begins = np.cumsum([0, *[len(source[0]) for source in self._sources]])
        newer = [self._newer.pop(slot) for slot in slots]
        parts = np.array([*chain(*newer)]).reshape(-1, _PART_SIZE)
        sources, firsts, counts = parts.T
        ends = counts.cumsum()  # of each part among the copied states
        where = np.repeat(begins[sources] + firsts - (ends - counts), counts) + np.arange(ends[-1])
        joined = [torch.cat(layers) for layers in zip(*self._sources, strict=True)]
        index = upload(where, joined[0].device)
        layers = tuple([layer.index_select(0, index) for layer in joined])
        num_parts = np.cumsum([len(own) // _PART_SIZE for own in newer])
        first = 0
        for slot, end in zip(slots, ends[num_parts - 1].tolist(), strict=True):
            self._older[slot].append(_Part(layers, first, end - first))
            first = end


def _padded(rows: Sequence[Sequence[_Part]]) -> tuple[Float[Tensor, "B W _"], ...]:
    """Return the states of each row, right-padded with its last one."""
    layers, indices = _gathered(rows)
    width = max(map(len, indices))
    padded = [own + own[-1:] * (width - len(own)) for own in indices]
    where, shape = _upload(padded, layers[0]), (len(rows), width)
    return tuple([layer.index_select(0, where).unflatten(0, shape) for layer in layers])


def _gathered(rows: Sequence[Sequence[_Part]]) -> tuple[FlatLayers, list[list[int]]]:
    """Return the batches that the states came in, as one, and where each row's states lie there."""
    offsets: dict[int, int] = {}  # of the batches, by id
    sources: list[FlatLayers] = []
    num_joined, indices = 0, []
    for parts in rows:
        own: list[int] = []
        for layers, first, count in parts:
            if id(layers) not in offsets:
                offsets[id(layers)] = num_joined
                sources.append(layers)
                num_joined += len(layers[0])
            first += offsets[id(layers)]
            own += range(first, first + count)
        indices.append(own)
    joined = [p[0] if len(p) == 1 else torch.cat(p) for p in zip(*sources, strict=True)]
    return tuple(joined), indices


def _upload(rows: Iterable[Sequence[int]], like: Tensor) -> Tensor:
    return upload([*chain(*rows)], like.device)
