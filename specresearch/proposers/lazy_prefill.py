"""What drafters share that read a prompt only when its request is about to draft."""

from collections.abc import Callable, Sequence

from specresearch.request import RequestState

MOST_BEHIND = 16  # tokens, root included, that a draft begins with; more need a prefill


def next_chunks(
    rows: Sequence[RequestState],
    unread: Callable[[RequestState], Sequence[int]],
    most: int,
) -> tuple[list[int], list[Sequence[int]]]:
    """Return slots and tokens of one pass that reads what the drafter has put off.

    The last token of each row is left for its draft.

    Args:
        unread: The tokens of a row that the drafter has not read.
        most: Tokens of all rows together; the first rows come first.
    """
    slots, chunks = [], []
    for row in rows:
        tokens = unread(row)
        if len(tokens) > MOST_BEHIND and most:
            chunk = tokens[:-1][:most]
            most -= len(chunk)
            slots.append(row.slot)
            chunks.append(chunk)
    return slots, chunks
