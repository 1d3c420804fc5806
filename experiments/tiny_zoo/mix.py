"""Pack documents into rows of equal length, one shard for each phase of the curriculum.

python experiments/tiny_zoo/mix.py --data DATA --work WORK
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import corpora
import numpy as np
from documents import Kind, Writer
from rich.progress import track
from transformers import AutoTokenizer
from vocabulary import train_tokenizer

PLAIN = {Kind.CHAT: 0.32, Kind.STORY: 0.22, Kind.BOOK: 0.20, Kind.MATHS: 0.14, Kind.CODE: 0.12}
NUM_TRIES = 4


@dataclass(frozen=True)
class Phase:
    """A stretch of training at one row length.

    Attributes:
        end: Fraction of the training time at which it stops.
        longest: Tokens of the longest passage to copy.
        repeat: Share of the tokens in repeated spans.
        quote: Share of the tokens in quoting; `PLAIN` shares the rest.
    num_tokens: size of its shard; training starts over if it is used up.
    """

    name: str
    length: int
    end: float
    longest: int
    repeat: float
    quote: float
    num_tokens: int

    @property
    def shares(self) -> dict[Kind, float]:
        """Return the share of the tokens that each kind of document gets."""
        rest = 1 - self.repeat - self.quote
        return {Kind.REPEAT: self.repeat, Kind.QUOTE: self.quote} | {
            kind: rest * part for kind, part in PLAIN.items()
        }


PHASES = (
    Phase("128", length=128, end=0.52, longest=48, repeat=0.80, quote=0.05, num_tokens=1_000_000),
    Phase("256", length=256, end=0.62, longest=90, repeat=0.25, quote=0.35, num_tokens=1_000_000),
    Phase("512", length=512, end=0.78, longest=330, repeat=0.03, quote=0.42, num_tokens=4_000_000),
    Phase(
        "1024", length=1024, end=0.92, longest=960, repeat=0.06, quote=0.50, num_tokens=4_000_000
    ),
    Phase(
        "2048", length=2048, end=1.0, longest=1800, repeat=0.05, quote=0.50, num_tokens=4_000_000
    ),
)


def pack(writer: Writer, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and kinds of a phase's rows, [rows, length] each."""
    num_rows = phase.num_tokens // phase.length
    ids = np.zeros((num_rows, phase.length), dtype=np.uint16)
    kinds = np.zeros((num_rows, phase.length), dtype=np.uint8)
    written = dict.fromkeys(Kind, 0.0)
    owed = dict.fromkeys(Kind, 0.0)
    for row in track(range(num_rows), description=f"packing {phase.name}"):
        for kind, share in phase.shares.items():
            owed[kind] += share * phase.length
        filled = 0
        while filled < phase.length:
            room = phase.length - filled
            document = None
            ranked = sorted(
                (kind for kind in owed if owed[kind]), key=lambda kind: written[kind] - owed[kind]
            )
            for kind in ranked[:NUM_TRIES]:
                document = writer.write(kind, room, phase.longest)
                if document is not None:
                    break
            if document is None:
                document = writer.write(Kind.STORY, room, phase.longest)
                kind = Kind.STORY
            if document is None:
                kinds[row, filled:] = Kind.NOISE
                break
            ids[row, filled : filled + len(document)] = document.ids
            kinds[row, filled : filled + len(document)] = document.kinds
            written[kind] += len(document)
            filled += len(document)
    return ids, kinds


def main() -> None:
    """Train the tokenizer and write one shard per phase."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", nargs="*", default=[phase.name for phase in PHASES])
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    text = corpora.load(arguments.data, held_out=False)
    folder = arguments.work / "tokenizer"
    if not folder.exists():
        train_tokenizer(text).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for index, phase in enumerate(PHASES):
        if phase.name in arguments.phases:
            ids, kinds = pack(Writer(tokenizer, text, arguments.seed + index), phase)
            np.savez(arguments.work / f"shard_{phase.name}.npz", ids=ids, kinds=kinds)


if __name__ == "__main__":
    main()
