"""The row of a group of prompts that one side has decoded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from specresearch.bench.output_check import OutputScores
from specresearch.metrics import StepRecord
from specresearch.rows import PassKey


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """The seconds that one side took for a group of prompts.

    It is written after the group's other rows, so it marks them as complete.

    Attributes:
        wall: All of `generate`, prefill included.
        draft_prefill: The draft model's part of prefill.
        num_draft_passes: The length of each step's longest draft, summed.
        scores: Scores of sampled output; None if it is not checked.
    """

    key: PassKey
    wall: float
    prefill: float
    draft_prefill: float = 0.0
    propose: float
    verify: float
    accept: float
    commit: float
    num_steps: int
    num_draft_passes: int
    num_requests: int
    num_generated_tokens: int
    scores: OutputScores | None = None

    @staticmethod
    def of(
        key: PassKey,
        wall: float,
        steps: Sequence[StepRecord],
        num_requests: int,
        scores: OutputScores | None = None,
    ) -> "GroupRow":
        """Return the row of a group that took these steps."""
        sums = {}
        for part in ("prefill", "draft_prefill", "propose", "verify", "accept", "commit"):
            sums[part] = math.fsum(getattr(step.times, part) for step in steps)
        return GroupRow(
            key=key,
            wall=wall,
            **sums,
            num_steps=len(steps),
            num_draft_passes=sum(max(step.draft_depth) for step in steps),
            num_requests=num_requests,
            num_generated_tokens=sum(sum(step.num_new_tokens) for step in steps),
            scores=scores,
        )

    @property
    def decode(self) -> float:
        """Return the seconds without prefill."""
        return self.wall - self.prefill

    @property
    def decode_and_draft_prefill(self) -> float:
        """Return the seconds without the target's prefill."""
        return self.decode + self.draft_prefill

    @property
    def host(self) -> float:
        """Return the seconds of decoding that no named part accounts for."""
        return self.decode - self.propose - self.verify - self.accept - self.commit

    def to_json(self) -> dict[str, Any]:
        """Return a flat row."""
        row = asdict(self)
        return row.pop("key") | row

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "GroupRow":
        """Return the group of a flat row. Raises KeyError if a column is missing."""
        columns = {field.name: row[field.name] for field in fields(GroupRow) if field.name != "key"}
        columns["scores"] = row["scores"] and OutputScores.from_json(row["scores"])
        return GroupRow(key=PassKey.of(row), **columns)
