"""Load rows whose figures are known beforehand."""

from collections.abc import Sequence

from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.window import LatencyLimits
from specresearch.metrics import Counts
from specresearch.rows import PassKey, RequestRow

LIMITS = LatencyLimits(ttft=1.0, tpot=0.1)


def request(
    number: int,
    arrival: float,
    *,
    gap: float = 0.1,
    num_tokens: int = 11,
    ttft: float = 0.5,
    side: str = "baseline",
    repeat: int = 0,
    category: str = "",
    queue_time: float = 0.0,
    drafts: tuple[int, int] = (0, 0),
) -> RequestRow:
    """Return a request whose tokens are `gap` seconds apart.

    Args:
        drafts: Accepted and drafted tokens of 5 drafts in 6 steps.
    """
    accepted, drafted = drafts
    counts = Counts(6, 5 if drafted else 0, drafted, accepted, num_tokens)
    return RequestRow(
        key=PassKey(repeat, 0, side),
        id=str(number),
        category=category,
        row=f"p{number}",
        num_prompt_tokens=10,
        arrival=arrival,
        queue_time=queue_time,
        ttft=ttft,
        tpot=gap,
        e2el=ttft + gap * (num_tokens - 1),
        itl=(gap,) * (num_tokens - 1),
        prefill_time=0.1,
        finish_reason="length",
        counts=counts,
    )


def finished(
    rows: Sequence[RequestRow], *, stopped: str | None = None, num_waiting: int = 0
) -> PassRow:
    """The pass of these rows."""
    return PassRow(
        key=rows[0].key,
        wall=max(row.finish for row in rows),
        num_requests=len(rows),
        num_submitted=len(rows),
        num_finished=len(rows),
        last_arrival=max(row.arrival for row in rows),
        num_waiting=num_waiting,
        stopped=stopped,
    )


def side(
    name: str, *repeats: Sequence[RequestRow], concurrency: int | None = None, **changes: object
) -> LoadSide:
    rows = [row for repeat in repeats for row in repeat]
    passes = [finished(repeat, **changes) for repeat in repeats]  # type: ignore[arg-type]
    return LoadSide.of(name, passes, rows, {}, concurrency, LIMITS)
