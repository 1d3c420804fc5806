"""The row of a pass of a load test."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from specresearch.bench.output_check import OutputScores
from specresearch.metrics import Counts
from specresearch.rows import PassKey


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """A finished pass. The row marks the pass's other rows as complete.

    Attributes:
        wall: Seconds that the pass took.
        last_arrival: When the last submitted request arrived, in seconds since the pass began.
        num_waiting: Requests in the queue when the pass ended.
        stopped: Why it ended before every request was answered; None if it did not.
        trace: The controller's own trace.
        memory: Pairs of seconds since the pass began and bytes that the process held, about once a
            second.
        scores: Scores of sampled output; None if it is not checked.
        counts: Of the whole pass, where a server counts drafts and not by request.
        num_failed: Requests that a server did not answer.
        session: Number of the session that measured a server, from 1; 0 for an engine.
        started: When a server's pass began, in ISO form.
    """

    key: PassKey
    wall: float
    num_requests: int
    num_submitted: int
    num_finished: int
    last_arrival: float
    num_waiting: int
    stopped: str | None = None
    trace: tuple[Mapping[str, float], ...] = ()
    memory: tuple[tuple[float, int], ...] = ()
    scores: OutputScores | None = None
    counts: Counts | None = None
    num_failed: int = 0
    session: int = 0
    started: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a flat row."""
        row = asdict(self)
        return row.pop("key") | row

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "PassRow":
        """Return the pass of a flat row. Raises KeyError if a column is missing."""
        values = {f.name: row[f.name] for f in fields(PassRow) if f.name != "key"}
        values["trace"] = tuple(values["trace"])
        values["memory"] = tuple(tuple(sample) for sample in values["memory"])
        values["scores"] = values["scores"] and OutputScores.from_json(values["scores"])
        values["counts"] = values["counts"] and Counts.from_row(values["counts"])
        return PassRow(key=PassKey.of(row), **values)
