"""The row of a request that got no answer."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specresearch.rows import PassKey


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """One failed request. Times are in seconds.

    Attributes:
        id: Of the request, unique within its pass.
        row: The row of the dataset that the prompt came from.
        category: Class of the request in a mixed workload.
        arrival: Seconds since the pass began.
        seconds: From arrival to failure.
        num_chunks: Pieces of the answer that had arrived.
        kind: Such as "rate limited" or "disconnected".
        status: The HTTP status, if there was an answer.
        retry_after: When the server asks to try again, in its own words.
    """

    key: PassKey
    id: str
    row: str
    category: str
    arrival: float
    seconds: float
    num_chunks: int
    kind: str
    message: str
    status: int | None = None
    retry_after: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a flat row."""
        row = asdict(self)
        return row.pop("key") | row


def count_failures(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many requests of each side failed in which way, from flat rows."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["side"]][row["kind"]] += 1
    return {side: dict(kinds) for side, kinds in counts.items()}
