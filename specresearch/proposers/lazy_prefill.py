"""Shared code for drafters with lazy prefill."""

from collections.abc import Callable, Sequence

from specresearch.request import RequestState

MOST_BEHIND = 16  # tokens, root included, that `propose` feeds itself; more need a lazy prefill


def next_chunks(
    rows: Sequence[RequestState],
    unread: Callable[[RequestState], Sequence[int]],
    max_tokens: int,
) -> tuple[list[int], list[Sequence[int]]]:
    """Return slots and tokens of one pass that reads what the drafter has put off.

    The last token of each row is left for its draft.

    Args:
        unread: The tokens of a row that the drafter has not read.
        max_tokens: Limit on the tokens of all rows together; the first rows come first.
    """
    slots, chunks = [], []
    for row in rows:
        tokens = unread(row)
        if len(tokens) > MOST_BEHIND and max_tokens:
            chunk = tokens[:-1][:max_tokens]
            max_tokens -= len(chunk)
            slots.append(row.slot)
            chunks.append(chunk)
    return slots, chunks
