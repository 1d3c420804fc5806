"""The prompts of one class of requests, in the dataset's order or by length."""

import random
from bisect import bisect_left
from itertools import cycle
from typing import Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from specresearch.data import Prompt, PromptDataset, Row, render

NUM_NEAREST = 8  # prompts of about the right length, one of which is drawn
MIN_TEXT = 32  # tokens that are left of a prompt at least, besides its template


@runtime_checkable
class Pool(Protocol):
    """The prompts of one class of requests.

    Attributes:
        max_tokens: The longest prompt in tokens.
    """

    max_tokens: int

    def next(self) -> tuple[Row, Prompt]:
        """Return the next row of the dataset, over and over, and its prompt."""
        ...

    def of_length(self, num_tokens: int, rng: random.Random) -> tuple[Row, Prompt]:
        """Return a prompt of about this length.

        Raises:
            ValueError: If lengths are unknown.
        """
        ...


class PromptPool:
    """Prompts of at most `max_tokens` tokens, tokenized on first use."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, dataset: PromptDataset, max_tokens: int
    ) -> None:
        self.tokenizer = tokenizer
        self.dataset = dataset
        self.max_tokens = max_tokens
        self._prompts: dict[str, Prompt] = {}
        self._cycle = cycle(dataset.rows)
        self._by_length: list[tuple[int, Row]] = []
        self._min_tokens = 0

    def next(self) -> tuple[Row, Prompt]:
        """Return the next row of the dataset, over and over, and its prompt."""
        row = next(self._cycle)
        return row, self._prompt(row)

    def of_length(self, num_tokens: int, rng: random.Random) -> tuple[Row, Prompt]:
        """Draw one of the prompts nearest in length, and cut it to `num_tokens` if it is longer."""
        if not self._by_length:
            self._sort()
        wanted = min(num_tokens, self.max_tokens)
        nearest = bisect_left(self._by_length, wanted, key=_length)
        begin = min(nearest, max(len(self._by_length) - NUM_NEAREST, 0))
        length, row = rng.choice(self._by_length[begin : begin + NUM_NEAREST])
        allowed = max(wanted, self._min_tokens)
        return row, self._prompt(row) if length <= allowed else self._cut(row, allowed)

    def _sort(self) -> None:
        lengths = [(len(self._prompt(row).token_ids), row) for row in self.dataset]
        self._by_length = sorted(lengths, key=_length)
        self._min_tokens = len(render(self.tokenizer, self.dataset.template, [""])) + MIN_TEXT

    def _prompt(self, row: Row) -> Prompt:
        if row.id not in self._prompts:
            self._prompts[row.id] = self._cut(row, self.max_tokens)
        return self._prompts[row.id]

    def _cut(self, row: Row, max_tokens: int) -> Prompt:
        return self.dataset.prompt(self.tokenizer, row, max_tokens=max_tokens)


def _length(entry: tuple[int, Row]) -> int:
    return entry[0]
