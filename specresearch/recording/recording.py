"""Read what a run with `record=true` kept, to answer questions later without the model.

A recording is one Parquet file with a row per request and step, and a `Header` in its metadata.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from specresearch.recording.header import Header
from specresearch.recording.schema import COLUMN_TYPES, LIST_TYPES, RECORDING, TIMES
from specresearch.sampling import SamplingParams

STEP_KEY = ["side", "repeat", "group", "step"]
STEP_COLUMNS = ["num_nodes", "num_prefill_tokens", "num_lazy_prefill_tokens", "start", *TIMES]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """What one step did for one request. Arrays have an entry for each draft.

    Attributes:
        position: Tokens that the request had generated before.
        q: Empty if drafts were point masses.
        scores: Empty if there were none.
        expected: Expected acceptance; empty if there was none.
        depth: Length of the longest drafted path.
    """

    position: int
    draft_ids: Int[np.ndarray, " K"]
    p: Float[np.ndarray, " K"]
    q: Float[np.ndarray, " _"]
    scores: Float[np.ndarray, " _"]
    expected: Float[np.ndarray, " _"]
    num_accepted: int
    num_new: int
    depth: int


@dataclass(frozen=True, eq=False)
class RecordedRequest:
    """A finished request. Arrays have an entry for each of the E generated tokens.

    Attributes:
        num_draft_tokens: The request's own number of drafts, if it asked for one.
        p: The target's probability of each token.
        q: The drafter's; NaN where nothing was drafted, or as a point mass.
        logprobs: Under the target's raw logits.
    """

    id: str
    repeat: int
    category: str
    sampling: SamplingParams
    prompt_ids: tuple[int, ...]
    num_draft_tokens: int | None
    finish_reason: str
    token_ids: Int[np.ndarray, " E"]
    p: Float[np.ndarray, " E"]
    q: Float[np.ndarray, " E"]
    logprobs: Float[np.ndarray, " E"]
    steps: tuple[RecordedStep, ...] = field(repr=False)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class Recording:
    """A recording read back.

    Args:
        path: The file, or the folder of a run.

    Attributes:
        steps: A row per step of every side, with what its time depends on: num_rows, num_drafts,
            longest (draft), num_nodes (of a row, with padding), context and max_context (committed
            tokens in all and in the longest row), attended (nodes times the tokens that each
            attends to, without padding), num_prefill_tokens, num_lazy_prefill_tokens, and `TIMES`.

    Raises:
        ValueError: The folder has no recording, its format is another, or its target differs from
            the one in the folder's results.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / RECORDING if path.is_dir() else path
        if not self.path.is_file():
            raise ValueError(f"{self.path} does not exist; make one with record=true")
        self.header = Header.of(self.path)
        self._check_folder()
        self._table = pq.read_table(self.path)
        self.steps = self._read_steps()

    def _check_folder(self) -> None:
        results = self.path.with_name("results.json")
        if results.is_file():
            provenance = json.loads(results.read_text(encoding="utf-8")).get("provenance", {})
            self.header.check(self.path, provenance.get("target", {}), str(results))

    def _read_steps(self) -> pd.DataFrame:
        rows = self._table.select([*STEP_KEY, *STEP_COLUMNS, "context", "depth"]).to_pandas()
        chunks = self._table["draft_ids"].chunks
        rows["num_drafts"] = np.concatenate([np.diff(chunk.offsets) for chunk in chunks])
        num_nodes = rows["num_drafts"] + 1
        rows["attended"] = num_nodes * (rows["context"] + num_nodes)
        figures = rows.groupby(STEP_KEY, sort=False).agg(
            num_rows=("context", "size"),
            num_drafts=("num_drafts", "sum"),
            longest=("depth", "max"),
            context=("context", "sum"),
            max_context=("context", "max"),
            attended=("attended", "sum"),
            **{name: (name, "first") for name in STEP_COLUMNS},
        )
        return figures.reset_index()

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(self._table["side"].unique().to_pylist())

    def requests(self, side: str) -> tuple[RecordedRequest, ...]:
        """Return the finished requests of a side, in the order of their first step."""
        if side not in self.sides:
            raise ValueError(
                f"side={side} is not in {self.path}, which has {', '.join(self.sides)}"
            )
        rows = _Rows(self._table.filter(pa.array(self._table["side"].to_numpy() == side)))
        keys = zip(*(rows.scalars[name] for name in ("repeat", "group", "request")), strict=True)
        rows_of_requests: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for row, key in enumerate(keys):
            rows_of_requests[key].append(row)
        requests = []
        for numbers in rows_of_requests.values():
            if rows.scalars["finish_reason"][numbers[-1]] is not None:
                requests.append(rows.request(numbers))
        return tuple(requests)


class _Rows:
    """The rows of a table as numpy arrays, lists without a copy.

    Attributes:
        scalars: The columns that are no lists, by name.
    """

    def __init__(self, table: pa.Table) -> None:
        self.scalars = {name: table[name].to_pylist() for name in COLUMN_TYPES}
        self._offsets, self._values = {}, {}
        for name in LIST_TYPES:
            column = pa.concat_arrays(table[name].chunks)
            self._offsets[name] = column.offsets.to_numpy()
            self._values[name] = column.values.to_numpy(zero_copy_only=False)

    def list_of(self, name: str, row: int) -> np.ndarray:
        begin, end = self._offsets[name][row : row + 2]
        return self._values[name][begin:end]

    def request(self, rows: list[int]) -> RecordedRequest:
        """Return the request that has these rows."""

        def first(name: str) -> Any:
            return self.scalars[name][rows[0]]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([self.list_of(name, row) for row in rows])

        return RecordedRequest(
            id=first("request"),
            repeat=first("repeat"),
            category=first("category"),
            sampling=SamplingParams(**json.loads(first("sampling"))),
            prompt_ids=tuple(self.list_of("prompt_ids", rows[0]).tolist()),
            num_draft_tokens=first("num_draft_tokens"),
            finish_reason=self.scalars["finish_reason"][rows[-1]],
            token_ids=joined("new_ids"),
            p=joined("new_p"),
            q=joined("new_q"),
            logprobs=joined("new_logprobs"),
            steps=tuple(map(self._step, rows)),
        )

    def _step(self, row: int) -> RecordedStep:
        lists = ("draft_ids", "p", "q", "scores", "expected")
        scalars = ("position", "num_accepted", "depth")
        return RecordedStep(
            **{name: self.list_of(name, row) for name in lists},
            **{name: self.scalars[name][row] for name in scalars},
            num_new=len(self.list_of("new_ids", row)),
        )
