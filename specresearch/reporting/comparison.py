"""What a report compares: a side that drafts beside the baseline, on the same requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.outcome import Outcome
from specresearch.bench.output_verdict import Output
from specresearch.bench.side_comparison import MeanStepTimes, SideComparison
from specresearch.reporting.commands import Command
from specresearch.reporting.workload import Load, Setting, WorkloadKey


class Standing(Enum):
    """What becomes of a limit, where that makes a difference."""

    BROKEN = "broken, though plain decoding keeps it,"
    DOUBTFUL = "perhaps broken, though plain decoding keeps it,"
    HOPELESS = "broken, by plain decoding too,"
    KEPT = "kept, though plain decoding breaks it,"


@dataclass(frozen=True)
class SideFigures:
    """One side's figures: seconds, tokens per second and requests per second, by name."""

    figures: Mapping[str, Estimate] = field(default_factory=dict)
    acceptance: AcceptanceProfile | None = None
    step: MeanStepTimes | None = None

    def __getitem__(self, name: str) -> Estimate | None:
        return self.figures.get(name)

    def value(self, name: str) -> float | None:
        """Return a figure without its interval."""
        estimate = self[name]
        return None if estimate is None else estimate.value


@dataclass(frozen=True, kw_only=True)
class Comparison(SideComparison):
    """A side that drafts, and the baseline.

    `gain` is None if nothing could be compared. What a simulation predicts has no baseline.

    Attributes:
        details: What tells the setting from others of its method.
        max_running: The most requests decoded together; None for a run.
        fingerprint: Of the prompts.
        is_overloaded: Whether requests came faster than this side answered them.
        is_interleaved: Whether both sides met the same stretches of the machine's time.
        is_served: Whether servers were measured, which draft as they were started.
        unpaired: Why its sides were not measured together; empty if they were.
        failures: How many requests of which side failed, in words; empty if none did.
        over_best: Throughput over the better of plain decoding and the best fixed length.
        step_seconds: Means of a step as the controller estimated it, and as it was measured.
        pooled_with: Folders of other runs of the setting, whose figures are in these.
        command: What measured it.
        takes_length: Whether the proposer has a setting for the draft length.
        is_sample: Whether the prompts are the few that ship with the package.
        num_compared: For how many settings and loads together the gain's interval holds.
        outcome: Set by `judge`, as are the standings.
        standings: What becomes of the user's limits, by the figure that they hold for.
    """

    folder: Path
    workload: WorkloadKey
    load: Load
    setting: Setting
    details: Mapping[str, Any] = field(default_factory=dict)
    max_running: int | None = None
    baseline: SideFigures = SideFigures()
    speculative: SideFigures = SideFigures()
    output: Output = field(default_factory=Output)
    is_complete: bool = True
    num_requests: int = 0
    fingerprint: str = ""
    started: str = ""
    is_overloaded: bool = False
    is_baseline_overloaded: bool = False
    is_interleaved: bool = True
    is_served: bool = False
    unpaired: str = ""
    failures: str = ""
    over_best: Estimate | None = None
    step_seconds: tuple[float, float] | None = None
    pooled_with: tuple[Path, ...] = ()
    command: Command = field(default_factory=Command)
    takes_length: bool = False
    is_sample: bool = False
    num_compared: int = 1
    outcome: Outcome = Outcome.UNCLEAR
    standings: Mapping[str, Standing] = field(default_factory=dict)

    @property
    def scene(self) -> str:
        """Return workload and load, as figures name them."""
        return f"{self.workload.label}, {self.load.label}"

    @property
    def sides(self) -> tuple[SideFigures, SideFigures]:
        """Return the baseline and the side that drafts."""
        return self.baseline, self.speculative

    @property
    def any_overloaded(self) -> bool:
        """Return whether latencies grow with the time that was measured."""
        return self.is_overloaded or self.is_baseline_overloaded

    @property
    def both_overloaded(self) -> bool:
        """Return whether the latencies of both sides are those of the requests that got through."""
        return self.is_overloaded and self.is_baseline_overloaded

    @property
    def is_usable(self) -> bool:
        """Return whether it says anything of the speedup."""
        return self.gain is not None or self.any_overloaded

    def limits_that_are(self, standing: Standing) -> list[str]:
        """Return the figures whose limits have a standing."""
        return [name for name, found in self.standings.items() if found is standing]
