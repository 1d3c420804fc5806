"""What a report compares: a side that drafts beside the baseline, on the same requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.output_check import CHANGED, P_VALUES
from specresearch.bench.side_comparison import ClassChange, StepTimes
from specresearch.reporting.workload import Load, Policy, Workload


@dataclass(frozen=True)
class Output:
    """Whether a side's text equals the baseline's.

    Attributes:
        statement: The finding in words.
        is_same: Whether it is the same token for token but for rounding, or by proof; None if
            unknown, or if the rule is lossy.
        num_equal: Greedy outputs, if all are equal and no others were checked.
    """

    statement: str = ""
    is_same: bool | None = None
    num_equal: int = 0

    @property
    def is_wrong(self) -> bool:
        """Return whether it is known to differ."""
        return self.is_same is False

    @staticmethod
    def of(figures: Mapping[str, Any], *, lossless: bool) -> "Output":
        """Return the finding of the output figures of a side, given what its rule claims."""
        statement = figures["output_statement"]
        if not lossless:
            return Output(statement)
        p_values = [figures[name] for name in P_VALUES if figures[name] is not None]
        if p_values and min(p_values) < CHANGED:
            return Output(statement, is_same=False)
        num_compared = figures["num_outputs_compared"]
        if not num_compared:
            return Output(statement, is_same=True)
        num_equal = figures["num_outputs_equal"]
        are_equal = num_equal == num_compared and not p_values
        is_same = num_equal + figures["num_rounding_ties"] >= num_compared
        return Output(statement, is_same, num_equal if are_equal else 0)


@dataclass(frozen=True)
class Side:
    """One side's figures: seconds, tokens per second and requests per second, by name."""

    figures: Mapping[str, Estimate]
    acceptance: AcceptanceProfile | None = None
    step: StepTimes | None = None

    def __getitem__(self, name: str) -> Estimate | None:
        return self.figures.get(name)

    def value(self, name: str) -> float | None:
        """Return a figure without its interval."""
        estimate = self[name]
        return None if estimate is None else estimate.value


@dataclass(frozen=True)
class Comparison:
    """A side that drafts, and the baseline.

    Attributes:
        gain: How many times as fast it is; None if nothing could be compared under an overload.
        basis: What the gain compares, `throughput` or `latency`.
        ideal: The speedup that the step times allow; `decode` is what decoding alone reached.
        fingerprint: Of the prompts.
        settings: What tells it from other settings of its method.
        is_overloaded: Whether requests came faster than this side answered them.
        classes: Of a mixed workload; empty if all requests are alike.
        class_figures: The classes' figures, by class and `baseline` or `speculative`.
        max_running: The most requests decoded together; None for a run.
        is_interleaved: Whether both sides met the same stretches of the machine's time.
        pooled_with: Folders of other runs of the setting, whose figures are in these.
        num_compared: For how many settings and loads together the gain's interval holds.
    """

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    gain: Estimate | None
    basis: str
    baseline: Side
    speculative: Side
    ideal: float | None = None
    decode: Estimate | None = None
    output: Output = Output()
    is_complete: bool = True
    num_requests: int = 0
    fingerprint: str = ""
    started: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_overloaded: bool = False
    is_baseline_overloaded: bool = False
    classes: tuple[ClassChange, ...] = ()
    class_figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_running: int | None = None
    is_interleaved: bool = True
    pooled_with: tuple[Path, ...] = ()
    num_compared: int = 1

    @property
    def scene(self) -> str:
        """Return workload and load, as figures name them."""
        return f"{self.workload.label}, {self.load.label}"

    @property
    def sides(self) -> tuple[Side, Side]:
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


@dataclass(frozen=True)
class Trace:
    """What happened over time under one controller.

    Attributes:
        timelines: Rows of the timeline by label; the first is the controller's side.
        throughputs: Tokens per second by label.
        best: The label of the best fixed length, known only afterwards; "" if none was measured.
        speedup_over_best: Throughput over that of the better of the baseline and the best length.
        controller_estimates: What the controller estimated, by pass and step.
    """

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    timelines: Mapping[str, list[dict[str, Any]]]
    throughputs: Mapping[str, Estimate]
    best: str
    speedup_over_best: Estimate | None
    controller_estimates: tuple[Mapping[str, float], ...] = ()

    @property
    def scene(self) -> str:
        """Return workload and load, as figures name them."""
        return f"{self.workload.label}, {self.load.label}"

    def renamed(self, policy: Policy) -> "Trace":
        """Return the trace with another name for its policy."""
        old = self.policy.label
        timelines = {}
        for label, rows in self.timelines.items():
            timelines[policy.label if label == old else label] = rows
        throughputs = {}
        for label, figure in self.throughputs.items():
            throughputs[policy.label if label == old else label] = figure
        return replace(self, policy=policy, timelines=timelines, throughputs=throughputs)
