"""The row of a finished request."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from specresearch.engine import RequestOutput
from specresearch.metrics import Counts
from specresearch.rows.key import PassKey


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """One finished request. Times are in seconds; see `metrics.DEFINITIONS`.

    Attributes:
        id: Unique within its pass.
        row: The row of the dataset that the prompt came from.
        turn: Turn of the conversation.
        category: Class of the request in a mixed workload.
        num_cut_tokens: How many tokens the prompt was shortened by.
        arrival: Seconds since the pass began.
        itl: Seconds between consecutive tokens.
        token_ids: Tokens of the output.
        text: Text of the output; "" in load tests, which do not keep it.
    """

    key: PassKey
    id: str
    row: str
    turn: int = 0
    category: str = ""
    num_prompt_tokens: int
    num_cut_tokens: int = 0
    arrival: float = 0.0
    queue_time: float = 0.0
    ttft: float
    tpot: float
    e2el: float
    itl: tuple[float, ...]
    prefill_time: float
    num_preemptions: int = 0
    finish_reason: str
    counts: Counts
    token_ids: tuple[int, ...] = ()
    text: str = ""

    @staticmethod
    def of(
        key: PassKey, output: RequestOutput, *, row: str, begin: float, **rest: Any
    ) -> "RequestRow":
        """Return the row of an output.

        Args:
            row: The row of the dataset.
            begin: When the pass began, on the engine's clock.
            rest: Further attributes, such as `turn`, or an `id` other than the output's.
        """
        record = output.record
        return RequestRow(
            **{"key": key, "id": output.id, "row": row} | rest,
            num_prompt_tokens=record.num_prompt_tokens,
            arrival=record.arrival_time - begin,
            queue_time=record.queue_time,
            ttft=record.ttft,
            tpot=record.tpot,
            e2el=record.e2el,
            itl=tuple(round(gap, 7) for gap in record.itl),
            prefill_time=record.prefill_time,
            num_preemptions=record.num_preemptions,
            finish_reason=output.finish_reason,
            counts=record.counts,
            token_ids=output.token_ids,
        )

    @property
    def finish(self) -> float:
        """Return the seconds from the beginning of the pass to the last token."""
        return self.arrival + self.e2el

    def to_json(self) -> dict[str, Any]:
        """Return a flat row."""
        columns = {name: getattr(self, name) for name in _flat_columns()}
        return asdict(self.key) | columns | asdict(self.counts)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "RequestRow":
        """Return the request of a flat row. Raises KeyError if a column is missing."""
        columns = {name: row[name] for name in _flat_columns()}
        for name in ("itl", "token_ids"):
            columns[name] = tuple(columns[name])
        return RequestRow(key=PassKey.of(row), counts=Counts.from_row(row), **columns)


def _flat_columns() -> list[str]:
    return [field.name for field in fields(RequestRow) if field.name not in ("key", "counts")]
