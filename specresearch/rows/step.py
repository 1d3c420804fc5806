"""The row of a step: which columns there are, and how the steps of a pass are collected."""

from array import array
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from specresearch.metrics import StepRecord
from specresearch.rows.key import PassKey

TIMES = (
    "control",
    "propose",
    "verify",
    "accept",
    "commit",
    "prefill",
    "draft_prefill",
    "lazy_prefill",
    "schedule",
    "total",
)  # seconds, as in `StepTimes`
SCALARS = ("num_nodes", "num_waiting", "num_prefill_tokens", "num_lazy_prefill_tokens")
LISTS = ("num_draft_tokens", "num_accepted_tokens", "num_new_tokens", "context")  # by request
STEP_SCHEMA = pa.schema(
    [
        ("repeat", pa.int32()),
        ("group", pa.int32()),
        ("side", pa.string()),
        ("step", pa.int64()),
        ("start", pa.float64()),
        *((name, pa.float64()) for name in TIMES),
        *((name, pa.int32()) for name in SCALARS),
        ("num_running", pa.int32()),
        ("request_ids", pa.list_(pa.string())),
        *((name, pa.list_(pa.int32())) for name in LISTS),
    ]
)  # a run's steps have further columns, those of `StepRecord`


def step_row(key: PassKey, number: int, record: StepRecord, begin: float) -> dict[str, Any]:
    """Return one step as a flat row with every attribute of its record.

    Args:
        number: Its number in the pass.
        begin: When the pass began, on the engine's clock.
    """
    columns = asdict(record)
    times = columns.pop("times")
    columns["start"] = record.start - begin
    columns["num_running"] = len(record.request_ids)
    return asdict(key) | {"step": number} | columns | times


class StepLog:
    """Collects the steps of a pass as columns of numbers, some hundred bytes each.

    Attributes:
        begin: When the pass began, on the engine's clock. The column `start` counts from there.
    """

    def __init__(self, key: PassKey, begin: float) -> None:
        self.key = key
        self.begin = begin
        self.num_popped = 0
        self._clear()

    def __len__(self) -> int:
        return len(self._times["total"])

    def add(self, record: StepRecord) -> None:
        """Append a step."""
        self._start.append(record.start - self.begin)
        for name, column in self._times.items():
            column.append(getattr(record.times, name))
        for name, column in self._scalars.items():
            column.append(getattr(record, name))
        for name, column in self._lists.items():
            column.extend(getattr(record, name))
        self._request_ids.extend(record.request_ids)
        self._ends.append(len(self._request_ids))

    def pop(self) -> pa.Table:
        """Return the steps since the last call as a table of `STEP_SCHEMA`."""
        num = len(self)
        ends = pa.array(self._ends, pa.int32())
        num_running = [end - begin for begin, end in zip(self._ends, self._ends[1:], strict=False)]
        request_ids = pa.array(self._request_ids, pa.string())
        columns: dict[str, Any] = {
            "repeat": pa.array([self.key.repeat] * num, pa.int32()),
            "group": pa.array([self.key.group] * num, pa.int32()),
            "side": pa.array([self.key.side] * num),
            "step": pa.array(range(self.num_popped, self.num_popped + num), pa.int64()),
            "start": pa.array(self._start),
            "num_running": pa.array(num_running, pa.int32()),
            "request_ids": pa.ListArray.from_arrays(ends, request_ids),
        }
        for name, column in (self._times | self._scalars).items():
            columns[name] = pa.array(column)
        for name, column in self._lists.items():
            columns[name] = pa.ListArray.from_arrays(ends, pa.array(column))
        self.num_popped += num
        self._clear()
        return pa.table([columns[name] for name in STEP_SCHEMA.names], schema=STEP_SCHEMA)

    def _clear(self) -> None:
        self._start = array("d")
        self._times = {name: array("d") for name in TIMES}
        self._scalars = {name: array("i") for name in SCALARS}
        self._ends = array("i", [0])
        self._request_ids: list[str] = []
        self._lists = {name: array("i") for name in LISTS}
