"""Files of plain text, packed into examples of equal length."""

import glob
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from specresearch.training.corpus.examples import Example, Examples
from specresearch.training.corpus.sources import ListSource, RowSplit

DOCUMENT_END = "<|endoftext|>"
PASSAGE_CHARACTERS = 2000
BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


class PlainText(ListSource):
    """UTF-8 files packed into examples of `max_len` tokens, with a loss on all but the first token.

    Blank lines separate paragraphs, <|endoftext|> separates documents. The split is by passages of
    about 2000 characters of whole paragraphs. Documents and examples begin with the tokens that the
    tokenizer puts before a text; without any, its end token separates documents.
    """

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        max_len: int,
        split: RowSplit | None = None,
    ) -> None:
        self.files = _find(files)
        prefix = list(tokenizer("")["input_ids"])
        if max_len < len(prefix) + 2:
            raise ValueError(
                f"corpus.max_len={max_len} is too short for plain text; set some hundreds of tokens"
            )
        end_id = tokenizer.eos_token_id
        separator = prefix or ([end_id] if isinstance(end_id, int) else [])
        stream = array("i")
        for text in _contiguous_texts(self.files, split or RowSplit()):
            stream.extend(separator if stream else [])
            stream.extend(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        self.examples = Examples(_pack(stream, prefix, max_len - len(prefix)))
        if not len(self.examples):
            raise ValueError(
                f"{', '.join(files)}: no text to train on in this split; "
                "add text to corpus.text_files"
            )


def _pack(stream: "array[int]", prefix: list[int], width: int) -> Iterator[Example]:
    for begin in range(0, len(stream), width):
        token_ids = [*prefix, *stream[begin : begin + width]]
        if len(token_ids) > 1:
            yield Example.reply(token_ids[:1], token_ids[1:], f"token {begin} of the text")


def _find(patterns: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for pattern in patterns:
        names = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
        matches = [path for path in map(Path, names) if path.is_file()]
        if not matches:
            raise ValueError(
                f"corpus.text_files: there is no file {pattern}; "
                "give paths or patterns such as books/*.txt"
            )
        files += matches
    return files


def _contiguous_texts(files: Sequence[Path], split: RowSplit) -> Iterator[str]:
    """Yield maximal runs of neighbouring passages of one document that belong to the split."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file}: not UTF-8 text ({error.reason}); convert it to UTF-8"
            ) from error
        numbers = count()
        for document in text.split(DOCUMENT_END):
            passages = [(f"{file.name}#{next(numbers)}", part) for part in _passages(document)]
            for is_included, run in groupby(passages, key=lambda item: item[0] in split):
                if is_included:
                    yield "\n\n".join(part for _, part in run)


def _passages(document: str) -> Iterator[str]:
    """Yield whole paragraphs that add up to about PASSAGE_CHARACTERS."""
    passage: list[str] = []
    for paragraph in filter(None, BLANK_LINES.split(document.strip())):
        passage.append(paragraph)
        if sum(map(len, passage)) >= PASSAGE_CHARACTERS:
            yield "\n\n".join(passage)
            passage = []
    if passage:
        yield "\n\n".join(passage)
