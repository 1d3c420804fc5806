"""The passes of a run: which side decodes which group of prompts, and when."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from specresearch.bench.rows import GroupRow
from specresearch.data import Row
from specresearch.rows import PassKey, RequestRow

R = TypeVar("R", GroupRow, RequestRow)


@dataclass(frozen=True)
class PassPlan:
    """The order of the passes.

    Attributes:
        groups: The prompts that are decoded together.
        sides: The sides that decode each group, in turns.
    """

    groups: Sequence[Sequence[Row]]
    sides: Sequence[str]
    num_repeats: int

    def passes(self) -> list[PassKey]:
        """Return the passes in order; which side goes first alternates from group to group."""
        keys = []
        for repeat in range(self.num_repeats):
            for group in range(len(self.groups)):
                sides = list(self.sides)
                if (repeat + group) % 2:
                    sides.reverse()
                keys += [PassKey(repeat, group, side) for side in sides]
        return keys

    def is_paired(self, key: PassKey, done: Collection[PassKey]) -> bool:
        """Return whether every side has decoded the group of the key."""
        return all(replace(key, side=side) in done for side in self.sides)

    def paired(self, rows: Iterable[R], done: Collection[PassKey]) -> list[R]:
        """Return the rows of groups that every side has decoded."""
        return [row for row in rows if self.is_paired(row.key, done)]

    def num_prompts(self, key: PassKey) -> float:
        """Return the prompts that a pass counts for; each side counts for its share."""
        return len(self.groups[key.group]) / len(self.sides)
