"""Write prompts for training drafters in the ShareGPT format with published replies.

Their text is not used for any measurement.

    python experiments/tiny_zoo/prompts.py --data DATA --output WORK/prompts.json
    python experiments/tiny_zoo/prompts.py --data DATA --long --output WORK/prompts_long.json \\
        --repeats WORK/repeats.txt
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import corpora
from corpora import Turn
from documents import Writer
from transformers import AutoTokenizer

from specresearch.data.templates import CODE, MATHS, SUMMARY, Template

NUM_SUMMARIES, NUM_MATHS, NUM_FUNCTIONS = 900, 600, 400
MAX_PROMPT_TOKENS = 880  # leaves room for the reply in examples of 1024 tokens
SHORTEST, SHORT = 140, 280  # tokens of a passage; a third is longer and teaches to copy from afar

LONG_MAX_PROMPT_TOKENS = 1760  # the same in examples of 2048 tokens
LONG_REPEATS = 3  # times that a chat is asked for, each with other sampled replies
LONG_NUM_SUMMARIES = 2400

NUM_REPEATS = 30_000  # spans, of up to MAX_SPAN words
MAX_SPAN = 30


@dataclass(frozen=True)
class Prompt:
    """A conversation to be answered turn by turn, and how its questions are phrased."""

    kind: str
    template: Template | None
    turns: list[Turn]


def asked(kind: str, template: Template | None, question: str, answer: str) -> Prompt:
    """Return a prompt of one question."""
    return Prompt(kind, template, [Turn("user", question), Turn("assistant", answer)])


def prompts(writer: Writer, *, long: bool) -> Iterator[Prompt]:
    """Yield every prompt with its published answers."""
    text = writer.text
    for _ in range(LONG_REPEATS if long else 1):
        for chat in text.chats:
            for start in range(0, len(chat), 2):
                yield Prompt("chat", None, chat[start : start + 2])
            if long and len(chat) > 2:
                yield Prompt("conversation", None, chat)
    for question, answer in writer.random.sample(text.maths, NUM_MATHS):
        yield asked("maths", MATHS, question, answer)
    for function in writer.random.sample(text.functions, NUM_FUNCTIONS):
        yield asked("code", CODE, function.head, function.body)
    max_prompt_tokens = LONG_MAX_PROMPT_TOKENS if long else MAX_PROMPT_TOKENS
    short, longer = range(SHORTEST, SHORT), range(SHORT, max_prompt_tokens - 20)
    lengths = (short, longer) if long else (short, short, longer)
    num_drawn = 0
    while num_drawn < (LONG_NUM_SUMMARIES if long else NUM_SUMMARIES):
        passage = writer.passage(writer.random.choice(writer.random.choice(lengths)))
        if passage is not None:
            num_drawn += 1
            yield asked("summary", SUMMARY, passage.text, passage.quote)


def repeats(writer: Writer) -> Iterator[str]:
    """Yield spans of words out of place that are repeated, from which a new head learns to copy."""
    for _ in range(NUM_REPEATS):
        length = int(4 * (MAX_SPAN / 4) ** writer.random.random())
        span = [writer.word() for _ in range(length)]
        yield " ".join(span * writer.random.randint(2, 6))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder of the text that the tiny pair was trained on",
    )
    parser.add_argument("--tokenizer", type=Path, default=Path("specresearch/zoo/tiny"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--long",
        action="store_true",
        help="for examples of 2048 tokens: longer passages and more of them, whole conversations",
    )
    parser.add_argument("--repeats", type=Path, help="file for spans of words that are repeated")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    writer = Writer(tokenizer, corpora.load(arguments.data, held_out=False), arguments.seed)
    max_prompt_tokens = LONG_MAX_PROMPT_TOKENS if arguments.long else MAX_PROMPT_TOKENS
    written = []
    for number, prompt in enumerate(prompts(writer, long=arguments.long)):
        turns = []
        for turn in prompt.turns:
            text = turn.text
            if turn.role == "user" and prompt.template is not None:
                text = prompt.template.chat.replace("{text}", text)
            turns.append({"from": "human" if turn.role == "user" else "gpt", "value": text})
        if len(writer.encode(turns[0]["value"])) <= max_prompt_tokens:
            written.append({"id": f"{prompt.kind}-{number}", "conversations": turns})
    arguments.output.write_text(
        json.dumps(written, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
    )
    if arguments.repeats:
        documents = "\n<|endoftext|>\n".join(repeats(writer))
        arguments.repeats.write_text(documents + "\n", encoding="utf-8")
    print(f"{len(written)} prompts in {arguments.output}")


if __name__ == "__main__":
    main()
