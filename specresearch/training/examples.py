"""Token sequences to train on, and which of their tokens are to be predicted."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One sequence. loss_mask[i] is True where token i is to be predicted from those before it; never for the first.

    row: what it was made of, for people.
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
        """A prompt and what follows it, of which all is to be predicted."""
        mask = [False] * len(prompt_ids) + [True] * len(output_ids)
        return cls([*prompt_ids, *output_ids], mask, row)

    def predicted_whole(self) -> "Example":
        """The same text, of which all but the first token is to be predicted."""
        return Example(self.token_ids, [False] + [True] * (len(self.token_ids) - 1), self.row)

    @property
    def num_predicted(self) -> int:
        return sum(self.loss_mask)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first that is to be predicted."""
        return self.loss_mask.index(True)


class Examples:
    """Examples in flat arrays, five bytes a token: lists of Python integers take ten times as much."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._tokens, self._mask, self._ends = array("i"), bytearray(), array("q", [0])
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
        return Example(
            self._tokens[span].tolist(), list(map(bool, self._mask[span])), self._rows[index]
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_predicted(self) -> int:
        return sum(self._mask)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of SHA-256 over all tokens, masks and lengths."""
        digest = hashlib.sha256()
        for part in (self._tokens, self._mask, self._ends):
            digest.update(part)
        return digest.hexdigest()[:16]


def collate(examples: Sequence[Example], pad_id: int = 0) -> dict[str, Tensor]:
    """`token_ids` Int[B T] and `loss_mask` Bool[B T], right-padded to the longest example; padding is never to be predicted."""
    num_tokens = max(len(example.token_ids) for example in examples)
    token_ids = torch.full((len(examples), num_tokens), pad_id, dtype=torch.long)
    loss_mask = torch.zeros((len(examples), num_tokens), dtype=torch.bool)
    for row, example in enumerate(examples):
        token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids, dtype=torch.long)
        loss_mask[row, : len(example.token_ids)] = torch.tensor(example.loss_mask)
    return {"token_ids": token_ids, "loss_mask": loss_mask}
