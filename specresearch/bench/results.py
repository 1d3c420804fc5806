"""The results folder: rows appended as they come, what a killed run left behind, and the final figures."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from specresearch.bench.jsonl import read_jsonl, replace_text, to_line
from specresearch.bench.records import GroupRow, Place, RequestRow, step_row
from specresearch.metrics import StepRecord

CONFIG, RESULTS, REQUESTS, GROUPS = "config.yaml", "results.json", "requests.jsonl", "groups.jsonl"
STEPS_PART, STEPS = "steps.jsonl", "steps.parquet"
INDIFFERENT = ("resume", "progress", "tracker")  # keys a resumed run may change
IDENTITY = (("dataset", "fingerprint"), ("target", "num_parameters"), ("target", "dtype"), ("machine", "device"))


@dataclass(frozen=True)
class Results:
    """What results.json holds.

    summary: flat, figures only. intervals: bounds of the summary's figures. per_position: one entry per draft depth.
    complete: every group was decoded; False after an interruption.
    """

    complete: bool
    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    per_position: list[dict[str, Any]] = field(default_factory=list)
    histogram: dict[str, Any] = field(default_factory=dict)
    by_category: dict[str, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


class ResultsFolder:
    """One run's folder.

    A side of a group counts once its row stands in groups.jsonl; when a run is resumed, rows of unfinished ones are dropped
    and decoded again. Raises ValueError when the folder holds another run, or one with different settings.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.config = dict(config)
        self.requests: list[RequestRow] = []
        self.groups: list[GroupRow] = []
        self.done: set[Place] = set()
        found = (
            {p.name for p in path.iterdir() if p.name != ".hydra" and p.suffix != ".log"} if path.is_dir() else set()
        )
        is_run = CONFIG in found
        if is_run and found <= {CONFIG, RESULTS, "wandb"}:  # stopped before anything was decoded
            found = set()
        self.is_resumed = resume and is_run and bool(found)
        if found and not self.is_resumed:
            holds = "a run" if is_run else f"other files ({', '.join(sorted(found)[:3])})"
            remedy = "add resume=true to continue it, or " if is_run else ""
            raise ValueError(f"{path} already holds {holds}; {remedy}choose another hydra.run.dir")
        if self.is_resumed:
            self._check_config()
            self._load()

    def _check_config(self) -> None:
        before = _flatten(yaml.safe_load((self.path / CONFIG).read_text(encoding="utf-8")))
        now = _flatten(self.config)
        keys = [key for key in sorted(before.keys() | now.keys()) if key.split(".")[0] not in INDIFFERENT]
        differing = [
            f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
            for key in keys
            if before.get(key) != now.get(key)
        ]
        if differing:
            raise ValueError(
                f"{self.path} was started with other settings: {'; '.join(differing)}; repeat the original command with "
                "resume=true, or choose another hydra.run.dir"
            )

    def _load(self) -> None:
        self.groups = [GroupRow.from_json(row) for row in read_jsonl(self.path / GROUPS)]
        self.done = {row.place for row in self.groups}
        for name in (GROUPS, REQUESTS, STEPS_PART):
            if (self.path / name).exists():
                rows = read_jsonl(self.path / name)
                kept = [row for row in rows if Place(row["repeat"], row["group"], row["side"]) in self.done]
                replace_text(self.path / name, "".join(to_line(row) for row in kept))
        self.requests = [RequestRow.from_json(row) for row in read_jsonl(self.path / REQUESTS)]

    def begin(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Call when everything is loaded and before anything is decoded. Returns the provenance to report."""
        merged: dict[str, Any] = dict(provenance) | {"num_sessions": 1}
        if self.is_resumed and (self.path / RESULTS).exists():
            before = json.loads((self.path / RESULTS).read_text(encoding="utf-8"))["provenance"]
            for part, key in IDENTITY:
                if before[part][key] != merged[part][key]:
                    raise ValueError(
                        f"{self.path} was measured with {part} {key} {before[part][key]!r}, which is now {merged[part][key]!r}; "
                        "continue it where it was started, or choose another hydra.run.dir"
                    )
            merged = before | {"num_sessions": before["num_sessions"] + 1}
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / CONFIG, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))
        if not self.groups:
            self.write_results(Results(complete=False, provenance=merged))
        return merged

    def add_request(self, row: RequestRow) -> None:
        self.requests.append(row)
        self._append(REQUESTS, [row.to_json()])

    def add_group(self, row: GroupRow, steps: Sequence[StepRecord]) -> None:
        """Call after the group's requests."""
        self._append(STEPS_PART, [step_row(row.place, number, step) for number, step in enumerate(steps)])
        self._append(GROUPS, [row.to_json()])
        self.groups.append(row)
        self.done.add(row.place)

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as stream:
            stream.write("".join(to_line(row) for row in rows))

    def write_results(self, results: Results) -> None:
        replace_text(self.path / RESULTS, json.dumps(asdict(results), indent=2, ensure_ascii=False) + "\n")

    def write_steps(self, *, complete: bool) -> None:
        """steps.parquet from the rows so far; a complete run no longer needs them as text."""
        part = self.path / STEPS_PART
        rows = read_jsonl(part)
        if rows:
            temporary = self.path / f"{STEPS}.part"
            pq.write_table(pa.Table.from_pylist(rows), temporary)
            os.replace(temporary, self.path / STEPS)
        if complete:
            part.unlink(missing_ok=True)

    @property
    def files(self) -> list[Path]:
        """What there is to keep."""
        names = (CONFIG, RESULTS, REQUESTS, GROUPS, STEPS)
        return [self.path / name for name in names if (self.path / name).exists()]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
