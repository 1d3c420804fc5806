"""What a mix draws its examples from: the interface, and the train/heldout split of rows."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from specresearch.data import PromptDataset, Row
from specresearch.training.corpus.examples import Example, Examples

SPLITS = ("train", "heldout")


def stable_hash(*parts: object) -> int:
    """Return 63 bits that are the same on every machine and in every process."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


@lru_cache(maxsize=8)
def shuffled(num: int, *key: int) -> tuple[int, ...]:
    """Return a permutation of `range(num)` that depends on the key alone."""
    generator = torch.Generator().manual_seed(stable_hash(*key))
    return tuple(torch.randperm(num, generator=generator).tolist())


@dataclass(frozen=True)
class RowSplit:
    """One side of a train/heldout split; a row's side depends on its id alone."""

    split: Literal["train", "heldout"] = "train"
    heldout_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split={self.split} is unknown; use one of {', '.join(SPLITS)}")
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(
                f"corpus.heldout_fraction={self.heldout_fraction} must lie in [0, 1); "
                "0 holds nothing out"
            )

    def __contains__(self, id: str) -> bool:
        is_heldout = stable_hash(id) < self.heldout_fraction * 2**63
        return is_heldout == (self.split == "heldout")

    def rows(self, dataset: PromptDataset) -> tuple[Row, ...]:
        """Return this split's rows, in the dataset's order; there must be some."""
        rows = tuple(row for row in dataset.rows if row.id in self)
        if not rows:
            raise ValueError(
                f"dataset {dataset.name}: none of its {len(dataset)} rows falls to "
                f"split={self.split} at corpus.heldout_fraction={self.heldout_fraction}; "
                "change the fraction, or take more rows"
            )
        return rows


@dataclass(frozen=True)
class Draw:
    """A request for one example.

    Attributes:
        number: Earlier draws from this source.
        round: Number of times the student's text has been refreshed.
        index: Index of this draw among the draws of its round.
        round_size: Draws from this source in this round.
    """

    number: int
    seed: int
    round: int
    index: int
    round_size: int


class Source(ABC):
    """A source of training examples."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of everything the examples depend on."""

    @abstractmethod
    def draw(self, draw: Draw) -> Example:
        """Return the same example for the same draw, in every process."""


class ListSource(Source):
    """A finite list, reshuffled after each pass over it."""

    examples: Examples

    @property
    def fingerprint(self) -> str:
        return self.examples.fingerprint

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def draw(self, draw: Draw) -> Example:
        epoch, index = divmod(draw.number, len(self.examples))
        return self.examples[shuffled(len(self.examples), draw.seed, epoch)[index]]

    def first(self, num: int, seed: int) -> Iterator[Example]:
        """Yield the distinct examples of the first `num` draws; all, in order, if they wrap."""
        if num >= len(self.examples):
            return iter(self.examples)
        return (self.examples[index] for index in shuffled(len(self.examples), seed, 0)[:num])
