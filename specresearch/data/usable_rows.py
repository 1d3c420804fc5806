"""The rows of a dataset with something to decode, the choice of some, and their fingerprint."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice

from specresearch.data.formats import Parser, Row
from specresearch.data.sources import Origin

SHUFFLE_BUFFER = 10_000  # rows


class UsableRows:
    """Iterates over the rows of an origin that have user text, with unique ids.

    Args:
        format_name: The format that the parser reads, for errors.
        max_turns: Turns to keep of each row; None keeps all.

    Attributes:
        num_skipped: Rows without user text.
    """

    def __init__(
        self, origin: Origin, parser: Parser, format_name: str, max_turns: int | None
    ) -> None:
        self.origin = origin
        self.parser = parser
        self.format_name = format_name
        self.max_turns = max_turns
        self.num_skipped = 0

    def __iter__(self) -> Iterator[Row]:
        num_seen: dict[str, int] = {}
        for number, record in enumerate(self.origin.records):
            try:
                row = self.parser(record.fields)
            except ValueError as error:
                raise ValueError(
                    f"{self.origin.location}, {record.location}: {error}; this is not the "
                    f"{self.format_name} format: correct the file, choose another dataset=, or "
                    "name the prompt's field with dataset.field="
                ) from None
            kept = [index for index, turn in enumerate(row.turns) if turn.strip()]
            kept = kept[: self.max_turns]
            if not kept:
                self.num_skipped += 1
                continue
            id = row.id or str(number)
            num_seen[id] = num_seen.get(id, 0) + 1
            yield replace(
                row,
                id=id if num_seen[id] == 1 else f"{id}#{num_seen[id]}",
                turns=tuple(row.turns[index] for index in kept),
                replies=tuple(row.replies[index] for index in kept) if row.replies else (),
            )


def choose_rows(
    rows: Iterable[Row],
    limit: int | None,
    shuffle_seed: int | None = None,
    buffer_size: int | None = None,
) -> tuple[Row, ...]:
    """Return the first rows, or a random choice.

    Args:
        limit: The number of rows; None returns all.
        shuffle_seed: Seed of the random choice; None keeps the order.
        buffer_size: Choose each row among this many that were read last, and read no further than
            needed; None reads and shuffles all rows.
    """
    if shuffle_seed is None:
        return tuple(islice(rows, limit))
    generator = random.Random(shuffle_seed)
    if buffer_size is not None:
        return tuple(islice(_shuffled(rows, generator, buffer_size), limit))
    shuffled = list(rows)
    generator.shuffle(shuffled)
    return tuple(shuffled[:limit])


def _shuffled(rows: Iterable[Row], generator: random.Random, size: int) -> Iterator[Row]:
    """Yield random rows of a buffer, each replaced by the next row of the source.

    The `datasets` library would shuffle before rows are numbered, so that a row's id, and with it
    its side of a train/heldout split, would depend on the seed.
    """
    buffer: list[Row] = []
    for row in rows:
        if len(buffer) < size:
            buffer.append(row)
            continue
        index = generator.randrange(size)
        yield buffer[index]
        buffer[index] = row
    generator.shuffle(buffer)
    yield from buffer


def fingerprint(rows: Sequence[Row]) -> str:
    """Return 16 hexadecimal digits of SHA-256 over what decoding may see; replies are excluded."""
    digest = hashlib.sha256()
    for row in rows:
        visible = asdict(row)
        del visible["replies"]
        digest.update(json.dumps(visible, ensure_ascii=True, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
