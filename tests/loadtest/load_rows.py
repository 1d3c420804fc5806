"""Load rows whose figures are known beforehand."""

from collections.abc import Sequence

from specresearch.loadtest.rows import LoadRow, PassPlace, PassRow
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.window import Limits
from specresearch.metrics import Counts

LIMITS = Limits(ttft=1.0, tpot=0.1)


def request(
    number: int,
    arrival: float,
    *,
    gap: float = 0.1,
    num_tokens: int = 11,
    ttft: float = 0.5,
    side: str = "plain",
    repeat: int = 0,
    category: str = "",
    queue_time: float = 0.0,
    drafts: tuple[int, int] = (0, 0),
) -> LoadRow:
    """Tokens come evenly, `gap` seconds apart. drafts: accepted and drafted tokens, of 5 drafts in 6 steps."""
    accepted, drafted = drafts
    counts = Counts(6, 5 if drafted else 0, drafted, accepted, num_tokens)
    return LoadRow(
        PassPlace(repeat, side),
        str(number),
        category,
        f"p{number}",
        10,
        0,
        arrival,
        queue_time,
        ttft,
        gap,
        ttft + gap * (num_tokens - 1),
        (gap,) * (num_tokens - 1),
        0.1,
        0,
        "length",
        counts,
    )


def finished(
    rows: Sequence[LoadRow], *, stopped: str | None = None, num_waiting: int = 0
) -> PassRow:
    """The pass of these rows."""
    wall = max(row.finish for row in rows)
    last = max(row.arrival for row in rows)
    return PassRow(rows[0].place, wall, len(rows), len(rows), len(rows), last, num_waiting, stopped)


def side(
    name: str, *repeats: Sequence[LoadRow], concurrency: int | None = None, **changes: object
) -> LoadSide:
    rows = [row for repeat in repeats for row in repeat]
    passes = [finished(repeat, **changes) for repeat in repeats]  # type: ignore[arg-type]
    return LoadSide.of(name, passes, rows, {}, concurrency, LIMITS)
