"""Where examples come from: published replies and plain text here, text of the models themselves in `generated`."""

import glob
import hashlib
import json
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from specresearch.data import PromptDataset, Row
from specresearch.training.examples import Example, Examples
from specresearch.training.progress import progress
from specresearch.training.replies import examples_of, published_replies

Split = Literal["train", "heldout"]
SPLITS = ("train", "heldout")
DOCUMENT_END = "<|endoftext|>"
PASSAGE_CHARACTERS = 2000
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


def stable_hash(*parts: object) -> int:
    """63 bits that depend on the parts alone, on every machine and in every process."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


@lru_cache(maxsize=8)
def shuffled(num: int, *key: int) -> tuple[int, ...]:
    """The numbers below `num` in an order that depends on the key alone."""
    return tuple(
        torch.randperm(num, generator=torch.Generator().manual_seed(stable_hash(*key))).tolist()
    )


@dataclass(frozen=True)
class Part:
    """Which rows: a row is held out or not by its id alone, whatever else the dataset holds and in whatever order.

    heldout_fraction: expected share of rows that are held out. Raises ValueError for a fraction outside [0, 1).
    """

    split: Split = "train"
    heldout_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split={self.split} is not known; use one of {', '.join(SPLITS)}")
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(
                f"corpus.heldout_fraction={self.heldout_fraction} must lie in [0, 1); 0 holds nothing out"
            )

    def __contains__(self, id: str) -> bool:
        is_heldout = stable_hash(id) < self.heldout_fraction * 2**63
        return is_heldout == (self.split == "heldout")

    def rows(self, dataset: PromptDataset) -> tuple[Row, ...]:
        """Rows of this part, in the dataset's order. None at all is a ValueError."""
        rows = tuple(row for row in dataset.rows if row.id in self)
        if not rows:
            raise ValueError(
                f"dataset {dataset.name}: none of its {len(dataset)} rows falls to split={self.split} at "
                f"corpus.heldout_fraction={self.heldout_fraction}; change the fraction, or take more rows"
            )
        return rows


@dataclass(frozen=True)
class Draw:
    """One example asked of a source.

    number: draws from this source before. round: how often the sources that follow the student have been due for new text;
    place, of: this draw among those of its round, and how many those are.
    """

    number: int
    seed: int
    round: int
    place: int
    of: int


class Source(ABC):
    """Examples to draw."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of everything that the examples depend on."""

    @abstractmethod
    def draw(self, draw: Draw) -> Example:
        """The same example for the same draw, in every process."""


class Listed(Source):
    """A list of examples, all of which are drawn once before any is drawn again; each time in another order."""

    examples: Examples

    @property
    def fingerprint(self) -> str:
        return self.examples.fingerprint

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def draw(self, draw: Draw) -> Example:
        epoch, place = divmod(draw.number, len(self.examples))
        return self.examples[shuffled(len(self.examples), draw.seed, epoch)[place]]

    def first(self, num: int, seed: int) -> Iterator[Example]:
        """Every example among the first `num` draws; all of them in their own order where these come round."""
        if num >= len(self.examples):
            return iter(self.examples)
        return (self.examples[place] for place in shuffled(len(self.examples), seed, 0)[:num])


class FixedText(Listed):
    """Published replies of a dataset: of chats, or a reference to a single prompt, with a loss on the replies only.

    max_len: tokens of an example at most; see `examples_of` for what becomes of longer ones.
    Raises ValueError when no row has a reply to learn from.
    """

    def __init__(
        self,
        dataset: PromptDataset,
        tokenizer: PreTrainedTokenizerBase,
        max_len: int,
        part: Part | None = None,
    ) -> None:
        rows = (part or Part()).rows(dataset)
        self.num_skipped = sum(not published_replies(row) for row in rows)
        self.examples = Examples(_rendered(dataset, tokenizer, rows, max_len))
        if not len(self.examples):
            raise ValueError(
                f"dataset {dataset.name}: nothing to predict is left of {len(rows)} rows, {self.num_skipped} of which have no "
                "published reply; take a dataset with replies (sharegpt, gsm8k), corpus=target to let the target write them, or "
                "corpus=text"
            )


def _rendered(
    dataset: PromptDataset, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], max_len: int
) -> Iterator[Example]:
    with progress("reading text", len(rows), "rows") as advance:
        for row in rows:
            examples = examples_of(dataset, tokenizer, row, max_len)
            yield from (replace(example, row=f"row {row.id}") for example in examples)
            advance(1, sum(len(example.token_ids) for example in examples))


class PlainText(Listed):
    """Files of UTF-8 text, packed: every example but the last of all has `max_len` tokens, and all but its first are predicted.

    files: paths or patterns such as books/*.txt, read in the order of their names. Paragraphs are separated by blank lines,
    documents by <|endoftext|>. The held-out part takes out passages of about 2000 characters of whole paragraphs.

    A document and an example begin with the tokens that the tokenizer puts before a text; without such, documents are
    separated by its end token. Raises ValueError for files that are missing or hold no text.
    """

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        max_len: int,
        part: Part | None = None,
    ) -> None:
        self.files = _find(files)
        opening = list(tokenizer("")["input_ids"])
        if max_len < len(opening) + 2:
            raise ValueError(
                f"corpus.max_len={max_len} is too short for plain text; give it some hundreds of tokens"
            )
        end_id = tokenizer.eos_token_id
        between = opening or ([end_id] if isinstance(end_id, int) else [])
        stream = array("i")
        for stretch in _stretches(self.files, part or Part()):
            stream.extend(between if stream else [])
            stream.extend(tokenizer(stretch, add_special_tokens=False, verbose=False)["input_ids"])
        width = max_len - len(opening)
        windows = (
            (begin, [*opening, *stream[begin : begin + width]])
            for begin in range(0, len(stream), width)
        )
        self.examples = Examples(
            Example.reply(ids[:1], ids[1:], f"token {begin} of the text")
            for begin, ids in windows
            if len(ids) > 1
        )
        if not len(self.examples):
            raise ValueError(
                f"{', '.join(files)}: no text to train on in this part; give more text in corpus.text_files"
            )


def _find(patterns: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        files = [
            Path(name)
            for name in sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
        ]
        if not any(file.is_file() for file in files):
            raise ValueError(
                f"corpus.text_files: there is no file {pattern}; give paths or patterns such as books/*.txt"
            )
        found += [file for file in files if file.is_file()]
    return found


def _stretches(files: Sequence[Path], part: Part) -> Iterator[str]:
    """Runs of passages that stand together in a document and in the part."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file}: not UTF-8 text ({error.reason}); convert it to UTF-8"
            ) from error
        number = 0
        for document in text.split(DOCUMENT_END):
            run: list[str] = []
            for passage in _passages(document):
                if f"{file.name}#{number}" in part:
                    run.append(passage)
                elif run:
                    yield "\n\n".join(run)
                    run = []
                number += 1
            if run:
                yield "\n\n".join(run)


def _passages(document: str) -> Iterator[str]:
    """Whole paragraphs, so many that they come to PASSAGE_CHARACTERS."""
    passage: list[str] = []
    for paragraph in filter(None, _BLANK_LINES.split(document.strip())):
        passage.append(paragraph)
        if sum(map(len, passage)) >= PASSAGE_CHARACTERS:
            yield "\n\n".join(passage)
            passage = []
    if passage:
        yield "\n\n".join(passage)
