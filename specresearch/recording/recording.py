"""What a run with `record=true` keeps, so that questions can be answered later without the model.

One Parquet file with a row per request and step, and in its metadata a header that says what was recorded.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from specresearch.sampling import SamplingParams

RECORDING, PARTS = "recording.parquet", "recording"
FORMAT = 2
NUM_TOP = 5  # of the target's likeliest tokens that are kept at every output token
TIMES = (
    "propose",
    "verify",
    "accept",
    "commit",
    "schedule",
    "total",
    "prefill",
    "lazy_prefill",
    "between",
)  # seconds, of the whole step
_METADATA = b"specresearch"

_INTS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("side", "request", "category", "sampling", "finish_reason")
        ),
        *(
            (name, pa.int32())
            for name in ("repeat", "group", "step", "num_prompt_tokens", "position", "context")
        ),
        *(
            (name, pa.int32())
            for name in ("num_nodes", "num_prefill_tokens", "num_waiting", "depth", "num_accepted")
        ),
        *((name, pa.int32()) for name in ("num_draft_tokens", "num_lazy_prefill_tokens")),
        *((name, pa.float64()) for name in (*TIMES, "start", "arrival")),
        *(
            (name, _INTS)
            for name in ("prompt_ids", "draft_ids", "parents", "path", "new_ids", "top_ids")
        ),
        *(
            (name, _FLOATS)
            for name in ("p", "q", "scores", "expected", "new_p", "new_q", "new_logprobs")
        ),
        ("top_logprobs", _FLOATS),
    ]
)


@dataclass(frozen=True)
class Header:
    """What was recorded.

    target: model, num_parameters, dtype, device, vocab_size, max_len. machine: what it ran on. config: the run's own.
    kind: of the drafts, as `DraftKind` says. num_draft_tokens: the most that the proposer makes. lossless: of the rule.
    fixed: drafts per step of every side that always asks for the same number; None where a controller chose.
    """

    target: Mapping[str, Any]
    machine: str
    method: str | None
    acceptance: str
    lossless: bool
    kind: Mapping[str, bool]
    num_draft_tokens: int
    fixed: Mapping[str, int | None]
    config: Mapping[str, Any]
    package: str = ""
    format: int = FORMAT

    def written_into(self, schema: pa.Schema) -> pa.Schema:
        return schema.with_metadata(
            {_METADATA: json.dumps(asdict(self), ensure_ascii=False).encode()}
        )

    @staticmethod
    def of(path: Path) -> "Header":
        """Raises ValueError for a file that is no recording, or one of another format."""
        try:
            told = (pq.read_schema(path).metadata or {}).get(_METADATA)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path} cannot be read ({error}); record the run again") from error
        if told is None:
            raise ValueError(f"{path} is no recording of specresearch; make one with record=true")
        header = json.loads(told)
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {header.get('format')} (specresearch {header.get('package')}), and this version reads format "
                f"{FORMAT}; record the run again, or read it with that version"
            )
        return Header(**header)

    @property
    def longest_side(self) -> str:
        """The side with the longest fixed drafts: it says most of what is accepted."""
        lengths = {
            side: 0.5 if length is None else float(length) for side, length in self.fixed.items()
        }
        return max(lengths, key=lambda side: lengths[side])

    def check(self, path: Path, expected: Mapping[str, Any], whose: str) -> None:
        """Raises ValueError naming every difference from the target that is expected."""
        differing = [
            f"{key} is {self.target.get(key)!r} and not {value!r}"
            for key, value in expected.items()
            if key in self.target and self.target[key] != value
        ]
        if differing:
            raise ValueError(
                f"{path} was recorded with another target than {whose}: {'; '.join(differing)}"
            )


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """What one step did for one request. position: tokens it had generated before. depth: of its drafts.

    p, q, scores, expected: of every draft; q is empty where drafts were point masses, scores and expected where there were none.
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
    """A finished request: its tokens and, at each of the E that it generated, p and q of that token after those before it.

    q: NaN where nothing was drafted, or as a point mass. logprobs: of the target's raw logits. num_draft_tokens: its own.
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
    """The file read back. Raises ValueError for a folder without one, for another format, and for another target than the
    folder's results name.

    steps: a row per step of every side, with what its time depends on: num_rows, num_drafts, longest (draft), num_nodes (with
    padding, in a row), context and max_context (committed tokens: in all, in the longest row), attended (nodes times the tokens
    each looks at, padding left out), num_prefill_tokens, num_lazy_prefill_tokens, and `TIMES`.
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
            told = (
                json.loads(results.read_text(encoding="utf-8"))
                .get("provenance", {})
                .get("target", {})
            )
            self.header.check(self.path, told, str(results))

    def _read_steps(self) -> pd.DataFrame:
        names = [
            "side",
            "repeat",
            "group",
            "step",
            "num_nodes",
            "num_prefill_tokens",
            "num_lazy_prefill_tokens",
            "start",
            *TIMES,
        ]
        rows = self._table.select([*names, "context", "depth"]).to_pandas()
        rows["num_drafts"] = np.concatenate(
            [np.diff(chunk.offsets) for chunk in self._table["draft_ids"].chunks]
        )
        fed = rows["num_drafts"] + 1
        rows["attended"] = fed * (rows["context"] + fed)
        by = ["side", "repeat", "group", "step"]
        figures = rows.groupby(by, sort=False).agg(
            num_rows=("context", "size"),
            num_drafts=("num_drafts", "sum"),
            longest=("depth", "max"),
            context=("context", "sum"),
            max_context=("context", "max"),
            attended=("attended", "sum"),
            **{name: (name, "first") for name in names[4:]},
        )
        return figures.reset_index()

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(self._table["side"].unique().to_pylist())

    def requests(self, side: str) -> tuple[RecordedRequest, ...]:
        """The requests of a side that were decoded to their end, in the order in which they were first decoded."""
        if side not in self.sides:
            raise ValueError(f"{self.path} has no side {side!r}; there are {', '.join(self.sides)}")
        table = self._table.filter(pa.array(self._table["side"].to_numpy() == side))
        keys = ("repeat", "group", "request")
        found: dict[tuple[int, int, str], list[int]] = {}
        for number, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
            found.setdefault(key, []).append(number)
        columns = _Columns(table)
        return tuple(
            columns.request(rows)
            for rows in found.values()
            if columns.plain["finish_reason"][rows[-1]] is not None
        )


class _Columns:
    """Rows of a table as numpy arrays, lists without a copy."""

    def __init__(self, table: pa.Table) -> None:
        lists = [
            name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)
        ]
        self.plain = {
            name: table[name].to_pylist() for name in table.column_names if name not in lists
        }
        self._offsets, self._values = {}, {}
        for name in lists:
            column = pa.concat_arrays(table[name].chunks)
            self._offsets[name] = column.offsets.to_numpy()
            self._values[name] = column.values.to_numpy(zero_copy_only=False)

    def of(self, name: str, row: int) -> np.ndarray:
        begin, end = self._offsets[name][row : row + 2]
        return self._values[name][begin:end]

    def joined(self, name: str, rows: list[int]) -> np.ndarray:
        return np.concatenate([self.of(name, row) for row in rows])

    def request(self, rows: list[int]) -> RecordedRequest:
        first, last, plain = rows[0], rows[-1], self.plain
        return RecordedRequest(
            plain["request"][first],
            plain["repeat"][first],
            plain["category"][first],
            SamplingParams(**json.loads(plain["sampling"][first])),
            tuple(self.of("prompt_ids", first).tolist()),
            plain["num_draft_tokens"][first],
            plain["finish_reason"][last],
            self.joined("new_ids", rows),
            self.joined("new_p", rows),
            self.joined("new_q", rows),
            self.joined("new_logprobs", rows),
            tuple(self._step(row) for row in rows),
        )

    def _step(self, row: int) -> RecordedStep:
        return RecordedStep(
            self.plain["position"][row],
            self.of("draft_ids", row),
            self.of("p", row),
            self.of("q", row),
            self.of("scores", row),
            self.of("expected", row),
            self.plain["num_accepted"][row],
            len(self.of("new_ids", row)),
            self.plain["depth"][row],
        )
