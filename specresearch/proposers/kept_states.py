"""Hidden states of committed tokens, by slot, until a drafter reads them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.proposal import upload

MOST_PARTS = 512  # of a slot, before they are joined


class _Part(NamedTuple):
    """States in a row: those from `first` on of the flattened batch that they came in."""

    layers: tuple[Float[Tensor, "N _"], ...]
    first: int
    count: int


class KeptStates:
    """States of each slot, in order.

    What a step leaves is kept as it is, since most of it is read by the next step or never. Where
    the states of a slot lie is known on the host; so many rows are read by a few operations.
    """

    def __init__(self) -> None:
        self._parts: defaultdict[int, list[_Part]] = defaultdict(list)
        self._counts: defaultdict[int, int] = defaultdict(int)

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

        Nobody may change them later.
        """
        width, flat = layers[0].shape[1], _flat(layers)
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            if count:
                begin = b * width + (0 if first is None else first[b])
                self._append(slot, _Part(flat, begin, count))
                if len(self._parts[slot]) > MOST_PARTS:
                    count = self.count(slot)
                    self._append(slot, _Part(_flat(self.take([slot], [count])), 0, count))

    def read(self, slots: Sequence[int]) -> tuple[Float[Tensor, "B W _"], ...]:
        """Return the states of every slot, which has some, in each layer; padded as in `take`."""
        return _gathered([self._parts[slot] for slot in slots])

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
        return _gathered(taken)

    def keep(self, slot: int, count: int) -> None:
        """Keep at most the first `count` states of a slot."""
        kept = self._pop(slot, min(count, self.count(slot)))
        self.drop([slot])
        for part in kept:
            self._append(slot, part)

    def copy(self, source: int, slot: int) -> None:
        """Give a slot the states of another one."""
        self._parts[slot] = list(self._parts[source])
        self._counts[slot] = self._counts[source]

    def drop(self, slots: Sequence[int]) -> None:
        """Forget the states of these slots."""
        for slot in slots:
            self._parts.pop(slot, None)
            self._counts.pop(slot, None)

    def _append(self, slot: int, part: _Part) -> None:
        self._parts[slot].append(part)
        self._counts[slot] += part.count

    def _pop(self, slot: int, count: int) -> list[_Part]:
        """Remove and return the first states of a slot."""
        parts, popped = self._parts[slot], []
        self._counts[slot] -= count
        while count:
            part = parts.pop(0)
            num = min(count, part.count)
            popped.append(part._replace(count=num))
            if num < part.count:
                parts.insert(0, part._replace(first=part.first + num, count=part.count - num))
            count -= num
        return popped


def _gathered(rows: Sequence[Sequence[_Part]]) -> tuple[Float[Tensor, "B W _"], ...]:
    """Return the states of each row, right-padded with its last one."""
    starts: dict[int, int] = {}  # of the batches that states came in, by id
    sources: list[Sequence[Float[Tensor, "N _"]]] = []
    num_joined, index = 0, []
    for parts in rows:
        own: list[int] = []
        for layers, first, count in parts:
            if id(layers) not in starts:
                starts[id(layers)] = num_joined
                sources.append(layers)
                num_joined += len(layers[0])
            first += starts[id(layers)]
            own += range(first, first + count)
        index.append(own)
    width = max(map(len, index))
    padded = [place for own in index for place in own + own[-1:] * (width - len(own))]
    joined = [p[0] if len(p) == 1 else torch.cat(p) for p in zip(*sources, strict=True)]
    places, shape = upload(padded, joined[0].device), (len(rows), width)
    return tuple([layer.index_select(0, places).unflatten(0, shape) for layer in joined])


def _flat(layers: Sequence[Float[Tensor, "B D _"]]) -> tuple[Float[Tensor, "N _"], ...]:
    return tuple([layer.flatten(0, 1) for layer in layers])
