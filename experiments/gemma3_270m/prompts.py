"""Write the prompts that the target replies to, in the frames in which it is measured.

    python experiments/gemma3_270m/prompts.py --data DATA --tokenizer TARGET --output prompts.json

DATA holds public text: `sharegpt_chats.json`, `alpaca_demo.json`, `gsm8k_train.jsonl`,
`tinystories_sample.txt` (stories between `<|endoftext|>`) and `books/*.md`. Sets that measure
drafters are not among them. The order is random, so any slice (`--begin`, `--rows`) holds all
kinds.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specresearch.data.templates import CHAT, MATHS, RAW, SUMMARY, Template, render

NUM_MATHS, NUM_STORIES, NUM_SUMMARIES, NUM_CONTINUATIONS = 1200, 400, 1400, 800
REPLIES_TO_CHATS = 3  # few chats, and they matter most
PASSAGE_CHARS = (400, 1800)
STORY_CHARS = (80, 400)


class Prompts:
    """Prompts of each kind from the files under one folder.

    Args:
        max_tokens: Longest prompt; longer ones are left out, and histories of chats are shortened.
    """

    def __init__(
        self, data: Path, tokenizer: PreTrainedTokenizerBase, max_tokens: int, seed: int
    ) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.random = random.Random(seed)

    def rows(self) -> list[dict[str, str]]:
        """Return all prompts that are short enough, in random order."""
        rows: list[dict[str, str]] = []
        kinds = (self._chats, self._instructions, self._maths, self._stories, self._passages)
        for kind in kinds:
            name = kind.__name__.strip("_")
            num_replies = REPLIES_TO_CHATS if kind == self._chats else 1
            for number, text in enumerate(kind()):
                rows += [{"id": f"{name}-{number}", "prompt": text}] * num_replies
        self.random.shuffle(rows)
        return rows

    def _chats(self) -> Iterator[str]:
        """Yield every user turn alone, and later ones with as much of the chat as fits."""
        for chat in json.loads((self.data / "sharegpt_chats.json").read_text(encoding="utf-8")):
            messages = [message["value"] for message in chat["conversations"]]
            turns, replies = messages[::2], messages[1::2]
            for last in range(len(turns)):
                yield from self._fitting(CHAT, turns[last : last + 1])
                for first in range(last):
                    prompts = list(
                        self._fitting(CHAT, turns[first : last + 1], replies[first:last])
                    )
                    if prompts:
                        yield from prompts
                        break

    def _instructions(self) -> Iterator[str]:
        for row in json.loads((self.data / "alpaca_demo.json").read_text(encoding="utf-8")):
            turn = "\n\n".join(part for part in (row["instruction"], row["input"]) if part)
            yield from self._fitting(CHAT, [turn])

    def _maths(self) -> Iterator[str]:
        lines = (self.data / "gsm8k_train.jsonl").read_text(encoding="utf-8").split("\n")
        for line in self.random.sample([line for line in lines if line], NUM_MATHS):
            frame = self.random.choice((MATHS, CHAT))
            yield from self._fitting(frame, [json.loads(line)["question"]])

    def _stories(self) -> Iterator[str]:
        text = (self.data / "tinystories_sample.txt").read_text(encoding="utf-8")
        stories = [story.strip() for story in text.split("<|endoftext|>")]
        for story in self.random.sample([story for story in stories if story], NUM_STORIES):
            yield from self._fitting(RAW, [_beginning(story, self.random.randint(*STORY_CHARS))])

    def _passages(self) -> Iterator[str]:
        """Yield passages of books to be summarised, and others to be continued."""
        books = [_paragraphs(path) for path in sorted((self.data / "books").glob("*.md"))]
        num_paragraphs = [len(book) for book in books]
        for frame, num_prompts in ((SUMMARY, NUM_SUMMARIES), (RAW, NUM_CONTINUATIONS)):
            for book in self.random.choices(books, num_paragraphs, k=num_prompts):
                first = self.random.randrange(len(book))
                length = self.random.randint(*PASSAGE_CHARS)
                passage = _beginning("\n\n".join(book[first : first + 30]), length)
                yield from self._fitting(frame, [passage])

    def _fitting(
        self, template: Template, turns: list[str], replies: list[str] | None = None
    ) -> Iterator[str]:
        token_ids = render(self.tokenizer, template, turns, replies or [])
        if turns[-1].strip() and len(token_ids) <= self.max_tokens:
            yield str(self.tokenizer.decode(token_ids, skip_special_tokens=True))


def _paragraphs(path: Path) -> list[str]:
    paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    return [" ".join(text.split()) for text in paragraphs if text.strip()]


def _beginning(text: str, num_chars: int) -> str:
    """Return the first characters of a text, up to the end of a word."""
    if len(text) <= num_chars:
        return text
    return text[:num_chars].rpartition(" ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True, help="folder or hub id of the target")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--begin", type=int, default=0, help="first row of the slice")
    parser.add_argument("--rows", type=int, help="rows of the slice, by default all")
    parser.add_argument("--max-tokens", type=int, default=448)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    rows = Prompts(arguments.data, tokenizer, arguments.max_tokens, arguments.seed).rows()
    end = None if arguments.rows is None else arguments.begin + arguments.rows
    written = rows[arguments.begin : end]
    arguments.output.write_text(
        json.dumps(written, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
    )
    print(f"{len(written)} of {len(rows)} prompts in {arguments.output}")


if __name__ == "__main__":
    main()
