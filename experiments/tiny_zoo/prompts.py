"""Write prompts for training drafters in the ShareGPT format with published replies.

Their text is not used for any measurement.

    python experiments/tiny_zoo/prompts.py --data DATA --output WORK/prompts.json
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import corpora
from documents import Writer
from transformers import AutoTokenizer

from specresearch.data.templates import CODE, MATHS, SUMMARY, Template

NUM_SUMMARIES, NUM_MATHS, NUM_FUNCTIONS = 900, 600, 400
MAX_PROMPT_TOKENS = 880  # leaves room for the reply in examples of 1024 tokens
SHORT, LONG = range(140, 280), range(280, MAX_PROMPT_TOKENS - 20)  # tokens of a passage
PASSAGES = (SHORT, SHORT, LONG)  # to choose from: a third teaches to copy from afar


def rows(writer: Writer) -> Iterator[tuple[str, Template | None, str, str]]:
    """Yield the kind, template, question and published answer of every prompt."""
    text = writer.text
    for chat in text.chats:
        for question_turn, answer_turn in zip(chat[::2], chat[1::2], strict=True):
            yield "chat", None, question_turn.text, answer_turn.text
    for question, answer in writer.random.sample(text.maths, NUM_MATHS):
        yield "maths", MATHS, question, answer
    for function in writer.random.sample(text.functions, NUM_FUNCTIONS):
        yield "code", CODE, function.head, function.body
    num_drawn = 0
    while num_drawn < NUM_SUMMARIES:
        passage = writer.passage(writer.random.choice(writer.random.choice(PASSAGES)))
        if passage is not None:
            num_drawn += 1
            yield "summary", SUMMARY, passage.text, passage.quote


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
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    writer = Writer(tokenizer, corpora.load(arguments.data, held_out=False), arguments.seed)
    written = []
    for number, (kind, template, question, answer) in enumerate(rows(writer)):
        prompt = question if template is None else template.chat.replace("{text}", question)
        if len(writer.encode(prompt)) <= MAX_PROMPT_TOKENS:
            turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
            written.append({"id": f"{kind}-{number}", "conversations": turns})
    arguments.output.write_text(
        json.dumps(written, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
    )
    print(f"{len(written)} prompts in {arguments.output}")


if __name__ == "__main__":
    main()
