"""Write a recording during a run."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specresearch.acceptance import AcceptanceSampler
from specresearch.controllers import Controller, Fixed
from specresearch.engine import Step
from specresearch.files import written_whole
from specresearch.machine import device_name
from specresearch.metrics import StepRecord
from specresearch.models.causal_lm import CausalLM
from specresearch.proposal import DraftKind
from specresearch.proposers import Proposer
from specresearch.recording.header import Header
from specresearch.recording.probabilities import probability_columns
from specresearch.recording.schema import RECORDING, SCHEMA, TIMES
from specresearch.request import RequestState

PARTS = "recording"  # folder of the finished passes
_ROWS_PER_PART = 4096


def describe_recording(
    target: CausalLM,
    proposer: Proposer | None,
    rule: AcceptanceSampler,
    method: str | None,
    controllers: Mapping[str, Controller | None],
    config: Mapping[str, Any],
) -> Header:
    """Return the header of a recording.

    Args:
        method: The proposer's name.
        controllers: By side; None for a side that decodes plainly.
        config: The run's settings, in plain values.
    """
    longest = 0 if proposer is None else proposer.num_draft_tokens
    fixed = {}
    for side, controller in controllers.items():
        fixed[side] = 0 if controller is None else _fixed_length(controller, longest)
    kind = asdict(DraftKind() if proposer is None else proposer.kind)
    del kind["chain_setting"]  # a simulation cannot change what was drafted
    return Header(
        target={
            "model": target.name,
            "num_parameters": target.num_parameters,
            "dtype": str(target.dtype).removeprefix("torch."),
            "device": str(target.device),
            "max_len": target.max_len,
            "vocab_size": target.vocab_size,
        },
        machine=device_name(target.device),
        method=method,
        acceptance=type(rule).__name__.lower(),
        lossless=rule.lossless,
        kind=kind,
        num_draft_tokens=longest,
        fixed=fixed,
        config=config,
        package=version("specresearch"),
    )


def _fixed_length(controller: Controller, longest: int) -> int | None:
    """Return the number of drafts that a controller always asks for; None if it varies."""
    if not isinstance(controller, Fixed):
        return None
    length = controller.num_draft_tokens
    return longest if length is None else min(length, longest)


class Recorder:
    """A `StepObserver` that records the passes of a run, one after the other.

    A pass is what an interrupted run repeats: `begin` drops what an earlier attempt left, and only
    passes that reached their `end` are kept. Steps outside of a pass, such as a warm-up's, are not
    recorded. Rows are written to part files, which `write` joins.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder = folder
        self._parts = folder / PARTS
        self._schema = header.written_into(SCHEMA)
        self._name: str | None = None
        self._rows: list[dict[str, Any]] = []

    def begin(self, side: str, repeat: int = 0, group: int = 0) -> None:
        """Begin a pass."""
        self._parts.mkdir(parents=True, exist_ok=True)
        self._pass = {"side": side, "repeat": repeat, "group": group}
        self._name = f"{repeat:04d}-{group:06d}-{side}"
        for part in self._parts.glob(f"{self._name}.*"):
            part.unlink()
        self._rows.clear()
        self._num_steps = 0
        self._num_parts = 0
        self._known_ids: set[str] = set()
        self._last_end = 0.0
        self._last_ids: frozenset[str] = frozenset()

    def __call__(self, step: Step) -> None:
        """Record one step of the pass, if there is one."""
        if self._name is None:
            return
        step_columns = self._step_columns(step.record)
        self._rows += [step_columns | columns for columns in self._row_columns(step)]
        self._num_steps += 1
        if len(self._rows) >= _ROWS_PER_PART:
            self._flush()
        self._last_end = step.batch.clock.now()
        self._last_ids = frozenset(step.record.request_ids)

    def end(self) -> None:
        """End the pass, whose rows are then kept."""
        assert self._name is not None
        self._flush()
        for part in sorted(self._parts.glob(f"{self._name}.*.open")):
            part.rename(part.with_suffix(".parquet"))
        self._name = None

    def write(self, *, complete: bool) -> None:
        """Write recording.parquet from the passes so far, unless there are none.

        Args:
            complete: The run is complete and no longer needs the part files.
        """
        if not self._parts.is_dir():
            return
        parts = sorted(self._parts.glob("*.parquet"))
        with (
            written_whole(self.folder / RECORDING) as path,
            pq.ParquetWriter(path, self._schema, compression="zstd") as writer,
        ):
            for part in parts:
                table = pq.read_table(part)
                writer.write_table(table.replace_schema_metadata(self._schema.metadata))
        if complete:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=self._schema)
            part = self._parts / f"{self._name}.{self._num_parts:04d}.open"
            pq.write_table(table, part, compression="zstd")
            self._num_parts += 1
            self._rows.clear()

    def _step_columns(self, record: StepRecord) -> dict[str, Any]:
        """Return the columns that all rows of a step share."""
        times = asdict(record.times)
        # Without a request in common, the engine may have been idle in between.
        continues = not self._last_ids.isdisjoint(record.request_ids)
        times["between"] = record.start - self._last_end if continues else None
        return {
            **self._pass,
            "step": self._num_steps,
            "start": record.start,
            "num_nodes": record.num_nodes,
            "num_prefill_tokens": record.num_prefill_tokens,
            "num_lazy_prefill_tokens": record.num_lazy_prefill_tokens,
            "num_waiting": record.num_waiting,
            **{name: times[name] for name in TIMES},
        }

    def _row_columns(self, step: Step) -> list[dict[str, Any]]:
        """Return the other columns of each row."""
        proposal, record, topology = step.proposal, step.record, step.proposal.topology
        of_nodes, of_new = probability_columns(step)
        draft_ids, path = proposal.token_ids.tolist(), step.delivery.verdict.path.tolist()
        parents: list[Any] = [None] * len(draft_ids)
        if not topology.is_chain:
            parents = topology.parents.expand(len(draft_ids), -1).tolist()
        expected = record.expected_acceptance or [[]] * len(draft_ids)
        rows = []
        for b, state in enumerate(step.batch.rows):
            num_drafts, num_new = record.num_draft_tokens[b], record.num_new_tokens[b]
            num_accepted = record.num_accepted_tokens[b]
            row = {
                "request": state.id,
                "category": state.request.category,
                "num_draft_tokens": state.request.num_draft_tokens,
                "num_prompt_tokens": state.num_prompt_tokens,
                "position": state.num_generated - num_new,
                "context": record.context[b],
                "depth": record.draft_depth[b],
                "arrival": state.arrival_time,
                "finish_reason": state.finish_reason,
                "draft_ids": draft_ids[b][1 : num_drafts + 1],
                "parents": parents[b] and parents[b][: num_drafts + 1],
                "path": path[b][: num_accepted + 1],
                "num_accepted": num_accepted,
                "new_ids": state.newest(num_new),
                "expected": expected[b],
            }
            for name, values in of_nodes.items():
                row[name] = values[b][1 : num_drafts + 1]
            for name, values in of_new.items():
                row[name] = np.ravel(values[b][:num_new]).tolist()
            rows.append(row | self._first_columns(state))
        return rows

    def _first_columns(self, state: RequestState) -> dict[str, Any]:
        """Return what only the first row of a request holds."""
        if state.id in self._known_ids:
            return {}
        self._known_ids.add(state.id)
        sampling = json.dumps(asdict(state.request.sampling))
        return {"prompt_ids": state.tokens[: state.num_prompt_tokens], "sampling": sampling}
