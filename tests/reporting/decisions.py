"""What tests of decisions share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specresearch.reporting import Requirements
from specresearch.reporting.decision import Decision
from specresearch.reporting.findings import Finding
from specresearch.reporting.recommendation import explain
from tests.reporting.folders import Interval, write_load

FASTER, SLOWER, UNCLEAR = (1.5, 1.4, 1.6), (0.8, 0.7, 0.9), (1.02, 0.9, 1.15)
Decide = Callable[..., list[Decision]]


def finding_of(decision: Decision, term: str) -> Finding | None:
    for finding in explain(decision, Requirements()).findings:
        if finding.term == term:
            return finding
    return None


def write_loads(folder: Path, gains: Sequence[Interval], **settings: Any) -> None:
    for concurrency, gain in zip((1, 4, 8, 16), gains, strict=False):
        write_load(
            folder / f"{settings.get('method', 'm')}{concurrency}",
            gain,
            concurrency=concurrency,
            **settings,
        )
