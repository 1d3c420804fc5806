"""Write spans of words that are repeated, from which a new head learns to copy.

    python experiments/gemma3_270m/repeats.py --data DATA --output repeats.txt

Half of the spans are passages of `books/*.md` as they stand. The others have their words in random
order, so that nothing but the repetition tells what comes next.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

NUM_SPANS = 6000
WORDS = (4, 64)  # of a span, uniform in the logarithm
TIMES = (2, 6)  # that it is written


def spans(words: list[str], rng: random.Random) -> Iterator[str]:
    shortest, longest = WORDS
    for number in range(NUM_SPANS):
        length = int(shortest * (longest / shortest) ** rng.random())
        first = rng.randrange(len(words) - length)
        span = words[first : first + length]
        if number % 2:
            rng.shuffle(span)
        yield " ".join(span * rng.randint(*TIMES))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    books = sorted((arguments.data / "books").glob("*.md"))
    words = [word for book in books for word in book.read_text(encoding="utf-8").split()]
    written = "\n<|endoftext|>\n".join(spans(words, random.Random(arguments.seed)))
    arguments.output.write_text(written + "\n", encoding="utf-8")
    print(f"{NUM_SPANS} spans in {arguments.output}")


if __name__ == "__main__":
    main()
