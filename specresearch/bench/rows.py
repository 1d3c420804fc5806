"""What a run writes down while it goes: one row per request, one per decoded group, one per step."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from specresearch.bench.output_check import OutputScores
from specresearch.engine import RequestOutput
from specresearch.metrics import Counts, StepRecord

BASELINE, METHOD = "baseline", "method"


@dataclass(frozen=True, order=True)
class Place:
    """Which decoding: the same group of prompts is decoded once per side and repeat."""

    repeat: int
    group: int
    side: str


@dataclass(frozen=True)
class RequestRow:
    """One finished request: one turn of one row of the dataset. Times in seconds.

    num_cut_tokens: by how much the prompt was shortened. itl: seconds between consecutive tokens.
    """

    place: Place
    row: str
    turn: int
    category: str
    num_prompt_tokens: int
    num_cut_tokens: int
    finish_reason: str
    counts: Counts
    ttft: float
    tpot: float
    e2el: float
    prefill_time: float
    itl: tuple[float, ...]
    token_ids: tuple[int, ...]
    text: str

    @property
    def id(self) -> str:
        return f"{self.row}/{self.turn}"

    @staticmethod
    def of(
        place: Place, row: str, turn: int, category: str, num_cut_tokens: int, output: RequestOutput
    ) -> "RequestRow":
        record = output.record
        return RequestRow(
            place,
            row,
            turn,
            category,
            record.num_prompt_tokens,
            num_cut_tokens,
            output.finish_reason,
            record.counts,
            record.ttft,
            record.tpot,
            record.e2el,
            record.prefill_time,
            tuple(round(gap, 7) for gap in record.itl),
            output.token_ids,
            output.text,
        )

    def to_json(self) -> dict[str, Any]:
        return _flat(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "RequestRow":
        own = {f.name: row[f.name] for f in fields(RequestRow) if f.name not in ("place", "counts")}
        own |= {"itl": tuple(own["itl"]), "token_ids": tuple(own["token_ids"])}
        return RequestRow(place=_place(row), counts=Counts.from_row(row), **own)


@dataclass(frozen=True)
class GroupRow:
    """The time one side took for one group, in seconds; written last, so it marks the group's other rows as complete.

    wall: all of `generate`, prefill included; what it took to measure a lossy rule's shift is left out.
    num_draft_passes: the longest draft of each step, added up. draft_prefill: the drafter's part of prefill; scores: of a sampled
    output. Both None in rows that do not tell them.
    """

    place: Place
    wall: float
    prefill: float
    propose: float
    verify: float
    accept: float
    commit: float
    num_steps: int
    num_draft_passes: int
    num_requests: int
    num_generated_tokens: int
    draft_prefill: float | None = None
    scores: OutputScores | None = None

    @staticmethod
    def of(
        place: Place,
        wall: float,
        steps: list[StepRecord],
        num_requests: int,
        scores: OutputScores | None = None,
    ) -> "GroupRow":
        return GroupRow(
            place,
            wall,
            math.fsum(step.times.prefill for step in steps),
            math.fsum(step.times.propose for step in steps),
            math.fsum(step.times.verify for step in steps),
            math.fsum(step.times.accept for step in steps),
            math.fsum(step.times.commit for step in steps),
            len(steps),
            sum(max(step.draft_depth) for step in steps),
            num_requests,
            sum(sum(step.num_new_tokens) for step in steps),
            math.fsum(step.times.draft_prefill for step in steps),
            scores,
        )

    @property
    def decode(self) -> float:
        return self.wall - self.prefill

    @property
    def decode_and_draft_prefill(self) -> float:
        """Return all but the target's own prefill."""
        return self.decode + (self.draft_prefill or 0.0)

    @property
    def host(self) -> float:
        """What no named part accounts for."""
        return self.decode - self.propose - self.verify - self.accept - self.commit

    def to_json(self) -> dict[str, Any]:
        return _flat(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "GroupRow":
        told = {
            f.name: row[f.name]
            for f in fields(GroupRow)
            if f.name not in ("place", "draft_prefill", "scores")
        }
        scores = row.get("scores") and OutputScores.from_json(row["scores"])
        return GroupRow(
            place=_place(row), **told, draft_prefill=row.get("draft_prefill"), scores=scores
        )


def step_row(place: Place, number: int, step: StepRecord) -> dict[str, Any]:
    """One step as a flat row; lists have an entry per request."""
    row = asdict(step)
    times = row.pop("times")
    return asdict(place) | {"step": number} | row | times


def _place(row: Mapping[str, Any]) -> Place:
    return Place(row["repeat"], row["group"], row["side"])


def _flat(row: RequestRow | GroupRow) -> dict[str, Any]:
    """A row's own fields, with those of the records it holds in their place."""
    flat: dict[str, Any] = {}
    for name, value in asdict(row).items():
        flat |= value if name in ("place", "counts") else {name: value}
    return flat
