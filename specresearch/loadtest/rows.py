"""What a load run writes down: a row per finished request, a row per pass, and the steps of a pass in columns."""

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from specresearch.bench.output_check import OutputScores
from specresearch.bench.rows import BASELINE, METHOD, Place, RequestRow
from specresearch.engine import RequestOutput
from specresearch.loadtest.workload import PlannedRequest
from specresearch.metrics import Counts, StepRecord

PLAIN, CONTROLLED, FIXED = (
    "plain",
    "method",
    "fixed-",
)  # sides; the last one is followed by a draft length


@dataclass(frozen=True, order=True)
class PassPlace:
    """One pass: the whole workload, decoded once by one side."""

    repeat: int
    side: str


@dataclass(frozen=True)
class LoadRow:
    """One finished request. Times in seconds; arrival: since the pass began. itl: between consecutive tokens.

    row: of the dataset. token_ids: of greedy requests, which are compared; None of others.
    """

    place: PassPlace
    id: str
    category: str
    row: str
    num_prompt_tokens: int
    num_cut_tokens: int
    arrival: float
    queue_time: float
    ttft: float
    tpot: float
    e2el: float
    itl: tuple[float, ...]
    prefill_time: float
    num_preemptions: int
    finish_reason: str
    counts: Counts
    token_ids: tuple[int, ...] | None = None

    @staticmethod
    def of(
        place: PassPlace, planned: PlannedRequest, begin: float, output: RequestOutput
    ) -> "LoadRow":
        """begin: of the pass, seconds of the engine's clock."""
        record = output.record
        return LoadRow(
            place,
            output.id,
            planned.category,
            planned.row,
            record.num_prompt_tokens,
            planned.num_cut_tokens,
            record.arrival_time - begin,
            record.queue_time,
            record.ttft,
            record.tpot,
            record.e2el,
            tuple(round(gap, 7) for gap in record.itl),
            record.prefill_time,
            record.num_preemptions,
            output.finish_reason,
            record.counts,
            output.token_ids if planned.sampling.is_greedy else None,
        )

    @property
    def finish(self) -> float:
        """Seconds from the beginning of the pass to the last token."""
        return self.arrival + self.e2el

    def to_json(self) -> dict[str, Any]:
        flat = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("place", "counts")
        }
        return asdict(self.place) | flat | asdict(self.counts)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "LoadRow":
        own = {f.name: row[f.name] for f in fields(LoadRow) if f.name not in ("place", "counts")}
        own |= {"itl": tuple(own["itl"]), "token_ids": own["token_ids"] and tuple(own["token_ids"])}
        return LoadRow(
            place=PassPlace(row["repeat"], row["side"]), counts=Counts.from_row(row), **own
        )

    def as_request(self) -> RequestRow:
        """As the comparison of outputs knows it."""
        assert self.token_ids is not None
        side = BASELINE if self.place.side == PLAIN else METHOD
        return RequestRow(
            Place(self.place.repeat, 0, side),
            self.id,
            0,
            self.category,
            self.num_prompt_tokens,
            self.num_cut_tokens,
            self.finish_reason,
            self.counts,
            self.ttft,
            self.tpot,
            self.e2el,
            self.prefill_time,
            self.itl,
            self.token_ids,
            "",
        )


@dataclass(frozen=True)
class PassRow:
    """One pass that came to its end, which marks its other rows as complete.

    wall: seconds. last_arrival: of the last request that was submitted. num_waiting: in the queue when the pass ended.
    stopped: why it ended before every request had been answered, None if it did not. trace: the controller's own.
    memory: about once a second, and at both ends: seconds since it began, and bytes that the process held. scores: of its sampled
    output, where that was checked.
    """

    place: PassPlace
    wall: float
    num_requests: int
    num_submitted: int
    num_finished: int
    last_arrival: float
    num_waiting: int
    stopped: str | None
    trace: tuple[Mapping[str, float], ...] = ()
    memory: tuple[tuple[float, int], ...] = ()
    scores: OutputScores | None = None

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        return row.pop("place") | row

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "PassRow":
        later = ("memory", "scores")  # than the first version
        own: dict[str, Any] = {
            f.name: row[f.name] for f in fields(PassRow) if f.name not in ("place", *later)
        }
        own |= {"trace": tuple(own["trace"]), "memory": tuple(map(tuple, row.get("memory", ())))}
        own |= {"scores": row.get("scores") and OutputScores.from_json(row["scores"])}
        return PassRow(place=PassPlace(row["repeat"], row["side"]), **own)


TIMES = (
    "control",
    "propose",
    "verify",
    "accept",
    "commit",
    "prefill",
    "lazy_prefill",
    "schedule",
    "total",
)
SCALARS = ("num_nodes", "num_waiting", "num_prefill_tokens", "num_lazy_prefill_tokens")
LISTS = ("num_draft_tokens", "num_accepted_tokens", "num_new_tokens", "context")
SCHEMA = pa.schema(
    [
        ("repeat", pa.int32()),
        ("side", pa.string()),
        ("step", pa.int64()),
        ("start", pa.float64()),
        *((name, pa.float64()) for name in TIMES),
        *((name, pa.int32()) for name in SCALARS),
        ("num_running", pa.int32()),
        ("request_ids", pa.list_(pa.string())),
        *((name, pa.list_(pa.int32())) for name in LISTS),
    ]
)


class StepLog:
    """Steps as columns of numbers: some hundred bytes for each, and quickly written. start: since the pass began."""

    def __init__(self, place: PassPlace, begin: float) -> None:
        self.place, self.begin = place, begin
        self.num_logged = 0
        self._clear()

    def __len__(self) -> int:
        return len(self._times["total"])

    def _clear(self) -> None:
        self._start = array("d")
        self._times = {name: array("d") for name in TIMES}
        self._scalars = {name: array("i") for name in SCALARS}
        self._ends = array("i", [0])
        self._ids: list[str] = []
        self._lists = {name: array("i") for name in LISTS}

    def add(self, step: StepRecord) -> None:
        self._start.append(step.start - self.begin)
        for name, column in self._times.items():
            column.append(getattr(step.times, name))
        for name, column in self._scalars.items():
            column.append(getattr(step, name))
        for name, column in self._lists.items():
            column.extend(getattr(step, name))
        self._ids.extend(step.request_ids)
        self._ends.append(len(self._ids))

    def take(self) -> pa.Table:
        """The rows since the last call, which are forgotten here."""
        num = len(self)
        ends = pa.array(self._ends, pa.int32())
        columns: dict[str, Any] = {
            "repeat": pa.array([self.place.repeat] * num, pa.int32()),
            "side": pa.array([self.place.side] * num),
            "step": pa.array(range(self.num_logged, self.num_logged + num), pa.int64()),
            "start": pa.array(self._start),
            "num_running": pa.array(
                [b - a for a, b in zip(self._ends, self._ends[1:], strict=False)], pa.int32()
            ),
            "request_ids": pa.ListArray.from_arrays(ends, pa.array(self._ids, pa.string())),
        }
        columns |= {
            name: pa.array(column) for name, column in (self._times | self._scalars).items()
        }
        columns |= {
            name: pa.ListArray.from_arrays(ends, pa.array(column))
            for name, column in self._lists.items()
        }
        self.num_logged += num
        self._clear()
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
