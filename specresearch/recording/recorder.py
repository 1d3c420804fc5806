"""Writes a recording while a run goes on."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.acceptance import AcceptanceSampler
from specresearch.acceptance.base import own_probability, target_distribution
from specresearch.controllers import Controller, Fixed
from specresearch.engine import Step
from specresearch.files import written_whole
from specresearch.metrics import StepRecord
from specresearch.models.causal_lm import CausalLM
from specresearch.proposal import DraftKind, Proposal, upload
from specresearch.proposers import Proposer
from specresearch.recording.recording import NUM_TOP, PARTS, RECORDING, SCHEMA, TIMES, Header
from specresearch.request import RequestState
from specresearch.results.provenance import device_name

_ROWS_PER_PART = 4096


def describe_recording(
    target: CausalLM,
    proposer: Proposer | None,
    rule: AcceptanceSampler,
    method: str | None,
    controllers: Mapping[str, Controller | None],
    config: Mapping[str, Any],
) -> Header:
    """controllers: of every side; None for one that decodes plainly. config: the run's, in plain values."""
    most = 0 if proposer is None else proposer.num_draft_tokens
    return Header(
        {
            "model": target.name,
            "num_parameters": target.num_parameters,
            "dtype": str(target.dtype).removeprefix("torch."),
            "device": str(target.device),
            "max_len": target.max_len,
            "vocab_size": target.vocab_size,
        },
        device_name(target.device),
        method,
        type(rule).__name__.lower(),
        rule.lossless,
        asdict(DraftKind() if proposer is None else proposer.kind),
        most,
        {side: 0 if own is None else _fixed_length(own, most) for side, own in controllers.items()},
        config,
        version("specresearch"),
    )


def _fixed_length(controller: Controller, most: int) -> int | None:
    if not isinstance(controller, Fixed):
        return None
    return most if controller.num_draft_tokens is None else min(controller.num_draft_tokens, most)


class Recorder:
    """A `StepObserver` of one side of a run, or of one after the other. Rows go to parts, which `write` joins into the recording.

    A pass is what a run does at a stretch, and does again when it was interrupted: `begin` forgets what an earlier attempt
    left, and only passes that came to their `end` are joined. Steps outside of one, such as a warm-up's, are not recorded.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder = folder
        self._parts = folder / PARTS
        self._schema = header.written_into(SCHEMA)
        self._name: str | None = None
        self._rows: list[dict[str, Any]] = []

    def begin(self, side: str, repeat: int = 0, group: int = 0) -> None:
        self._parts.mkdir(parents=True, exist_ok=True)
        self._side, self._repeat, self._group = side, repeat, group
        self._name = f"{repeat:04d}-{group:06d}-{side}"
        for part in self._parts.glob(f"{self._name}.*"):
            part.unlink()
        self._rows.clear()
        self._num_steps = self._num_parts = 0
        self._known: set[str] = set()
        self._last: tuple[float, frozenset[str]] = (0.0, frozenset())

    def __call__(self, step: Step) -> None:
        """Record one step of the pass, if there is one."""
        if self._name is None:
            return
        shared = self._step_columns(step.record)
        self._rows += [shared | columns for columns in self._row_columns(step)]
        self._num_steps += 1
        if len(self._rows) >= _ROWS_PER_PART:
            self._flush()
        self._last = (step.batch.clock.now(), frozenset(step.record.request_ids))

    def end(self) -> None:
        assert self._name is not None
        self._flush()
        for part in sorted(self._parts.glob(f"{self._name}.*.open")):
            part.rename(part.with_suffix(".parquet"))
        self._name = None

    def write(self, *, complete: bool) -> None:
        """recording.parquet from the passes so far; a complete run no longer needs the parts. Without any, it stays as it is."""
        if not self._parts.is_dir():
            return
        parts = sorted(self._parts.glob("*.parquet"))
        with (
            written_whole(self.folder / RECORDING) as place,
            pq.ParquetWriter(place, self._schema, compression="zstd") as writer,
        ):
            for part in parts:
                writer.write_table(
                    pq.read_table(part).replace_schema_metadata(self._schema.metadata)
                )
        if complete:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=self._schema)
            pq.write_table(
                table, self._parts / f"{self._name}.{self._num_parts:04d}.open", compression="zstd"
            )
            self._num_parts += 1
            self._rows.clear()

    def _step_columns(self, record: StepRecord) -> dict[str, Any]:
        ended, ids = self._last
        goes_on = not ids.isdisjoint(record.request_ids)
        times = {name: getattr(record.times, name) for name in TIMES if name != "between"}
        return {
            "side": self._side,
            "repeat": self._repeat,
            "group": self._group,
            "step": self._num_steps,
            "start": record.start,
            "num_nodes": record.num_nodes,
            "num_prefill_tokens": record.num_prefill_tokens,
            "num_lazy_prefill_tokens": record.num_lazy_prefill_tokens,
            "num_waiting": record.num_waiting,
            "between": record.start - ended if goes_on else None,
            **times,
        }

    def _row_columns(self, step: Step) -> list[dict[str, Any]]:
        batch, proposal, record = step.batch, step.proposal, step.record
        probabilities = _probabilities(step)
        draft_ids, path = proposal.token_ids.tolist(), step.delivery.verdict.path.tolist()
        topology = proposal.topology
        parents = None if topology.is_chain else topology.parents.expand(len(batch), -1).tolist()
        rows = []
        for b, state in enumerate(batch.rows):
            num_drafts, num_new = record.num_draft_tokens[b], record.num_new_tokens[b]
            drafted = slice(1, num_drafts + 1)
            rows.append(
                {
                    "request": state.id,
                    "category": state.request.category,
                    "num_draft_tokens": state.request.num_draft_tokens,
                    "num_prompt_tokens": state.num_prompt_tokens,
                    "position": state.num_generated - num_new,
                    "context": record.context[b],
                    "depth": record.draft_depth[b],
                    "arrival": state.arrival_time,
                    "finish_reason": state.finish_reason,
                    "draft_ids": draft_ids[b][drafted],
                    "parents": None if parents is None else parents[b][: num_drafts + 1],
                    "path": path[b][: record.num_accepted_tokens[b] + 1],
                    "num_accepted": record.num_accepted_tokens[b],
                    "new_ids": state.newest(num_new),
                    "expected": []
                    if record.expected_acceptance is None
                    else record.expected_acceptance[b],
                    **{name: values[b][drafted] for name, values in probabilities.of_nodes.items()},
                    **{
                        name: _flat(values[b][:num_new])
                        for name, values in probabilities.of_new.items()
                    },
                    **self._at_first_sight(state),
                }
            )
        return rows

    def _at_first_sight(self, state: RequestState) -> dict[str, Any]:
        if state.id in self._known:
            return {}
        self._known.add(state.id)
        sampling = json.dumps(asdict(state.request.sampling))
        return {"prompt_ids": state.tokens[: state.num_prompt_tokens], "sampling": sampling}


@dataclass(frozen=True)
class _Probabilities:
    """Lists for every row, by name of the column: of its nodes, and of the tokens that it received."""

    of_nodes: dict[str, list[list[float]]]
    of_new: dict[str, list[Any]]


def _probabilities(step: Step) -> _Probabilities:
    batch, proposal, delivery = step.batch, step.proposal, step.delivery
    logits, device = step.output.logits, step.output.logits.device
    p, q, scores = (
        target_distribution(proposal, logits, batch.sampling),
        proposal.draft_probs,
        proposal.scores,
    )
    path = delivery.verdict.path.to(device)
    width = int(max(delivery.num_new))
    path = path[:, :width].clamp(min=0)  # [B, W]
    fresh = [
        row.newest(n) + [0] * (width - n)
        for row, n in zip(batch.rows, delivery.num_new, strict=True)
    ]
    new, row = upload(fresh, device, torch.long), torch.arange(len(batch), device=device)[:, None]
    log_probs = logits[row, path].float().log_softmax(-1)  # [B, W, V]
    top, top_ids = log_probs.topk(min(NUM_TOP, log_probs.shape[-1]))
    nothing: list[list[float]] = [[] for _ in batch.rows]
    return _Probabilities(
        {
            "p": own_probability(p, proposal).tolist(),
            "q": nothing if q is None else own_probability(q, proposal).tolist(),
            "scores": nothing if scores is None else scores.tolist(),
        },
        {
            "new_p": p[row, path, new].tolist(),
            "new_q": _probability_of_new(proposal, path, new).tolist(),
            "new_logprobs": log_probs.gather(2, new[:, :, None])[:, :, 0].tolist(),
            "top_ids": top_ids.tolist(),
            "top_logprobs": top.tolist(),
        },
    )


def _probability_of_new(
    proposal: Proposal, path: Int[Tensor, "B W"], new: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """q of every token received, NaN where it is not known: behind the last draft, and of point masses."""
    q = proposal.draft_probs
    if q is None:
        return torch.full(path.shape, torch.nan, device=path.device)
    row = torch.arange(len(path), device=path.device)[:, None]
    has_drafts = path < proposal.lengths[:, None] - 1
    return torch.where(has_drafts, q[row, path, new], torch.nan)


def _flat(values: list[Any]) -> list[Any]:
    return list(chain.from_iterable(values)) if values and isinstance(values[0], list) else values
