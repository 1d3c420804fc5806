"""Token sequences to train on, with masks for the loss."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One token sequence.

    Attributes:
        loss_mask: True where a token is to be predicted; never for the first token.
        row: Origin of the example, for error messages.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    row: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.loss_mask)
        assert not any(self.loss_mask[:1])

    @classmethod
    def reply(
        cls, prompt_ids: Sequence[int], output_ids: Sequence[int], row: str = ""
    ) -> "Example":
        """Join a prompt and its output; only the output is to be predicted."""
        mask = [False] * len(prompt_ids) + [True] * len(output_ids)
        return cls([*prompt_ids, *output_ids], mask, row)

    def with_full_mask(self) -> "Example":
        """Return the example with every token but the first to be predicted."""
        return Example(self.token_ids, [False] + [True] * (len(self.token_ids) - 1), self.row)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens before the first one to be predicted."""
        return self.loss_mask.index(True)


class Examples:
    """A sequence of examples in flat arrays, at five bytes a token."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._tokens = array("i")
        self._mask = bytearray()
        self._ends = array("q", [0])
        self._rows: list[str] = []
        for example in examples:
            self._rows.append(example.row)
            self._tokens.extend(example.token_ids)
            self._mask.extend(example.loss_mask)
            self._ends.append(len(self._tokens))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        span = slice(self._ends[index], self._ends[index + 1])
        mask = list(map(bool, self._mask[span]))
        return Example(self._tokens[span].tolist(), mask, self._rows[index])

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(len(self)))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of SHA-256 over all tokens, masks and lengths."""
        digest = hashlib.sha256()
        for part in (self._tokens, self._mask, self._ends):
            digest.update(part)
        return digest.hexdigest()[:16]


def collate(examples: Sequence[Example], pad_id: int = 0) -> dict[str, Tensor]:
    """Return `token_ids` Int[B T] and `loss_mask` Bool[B T], right-padded; padding has no loss."""
    num_tokens = max(len(example.token_ids) for example in examples)
    token_ids = torch.full((len(examples), num_tokens), pad_id, dtype=torch.long)
    loss_mask = torch.zeros((len(examples), num_tokens), dtype=torch.bool)
    for row, example in enumerate(examples):
        token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids, dtype=torch.long)
        loss_mask[row, : len(example.token_ids)] = torch.tensor(example.loss_mask)
    return {"token_ids": token_ids, "loss_mask": loss_mask}
