"""The folder of a run or a load test, as comparisons of its sides with the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import SideComparison, StepTimes
from specresearch.reporting.comparisons import Comparison, Output, Side, Trace
from specresearch.reporting.settings import (
    config_of,
    distinguishing_settings,
    fixed_length,
    load_of,
    policy_of,
    section,
    workload_of,
)
from specresearch.reporting.workload import Load, Policy, Workload
from specresearch.results.folder import read_config
from specresearch.rows import BASELINE, METHOD

TREES = ("static", "dynamic")
TOO_SHORT = "too short to have a middle between warm-up and tail"


@dataclass(frozen=True)
class FolderContent:
    """What one folder adds to a report.

    Attributes:
        limits: The latency limits of a load test, in seconds.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)


def read_folder(folder: Path, results: Mapping[str, Any]) -> FolderContent:
    """Return what a folder holds.

    Raises:
        ValueError: If nothing in it can be compared with the baseline.
    """
    return FolderReader(folder, results).read()


class FolderReader:
    """Reads one folder.

    Args:
        results: What results.json holds.
    """

    def __init__(self, folder: Path, results: Mapping[str, Any]) -> None:
        self.folder, self.results = folder, results
        self.config = read_config(folder)
        self.summary, self.provenance = results["summary"], results["provenance"]
        self.is_load = "kind" in results

    def read(self) -> FolderContent:
        """Return what the folder holds; see `read_folder`."""
        names = self._compared_sides()
        comparisons, left_out = [], []
        for name in names:
            comparison = self._comparison(name)
            is_usable = comparison.gain is not None or comparison.any_overloaded
            (comparisons if is_usable else left_out).append(comparison)
        stopped = self.results.get("stopped")
        if not comparisons:
            reason = f"; stopped early: {stopped}" if stopped else ""
            raise ValueError(
                f"every pass was {TOO_SHORT}: nothing to compare; send more requests{reason}"
            )
        notes = []
        if left_out:
            labels = "; ".join(comparison.policy.label for comparison in left_out)
            notes.append(
                f"{labels}: left out, since its passes were {TOO_SHORT}; send more requests"
            )
        if stopped:
            notes.append(f"stopped early: {stopped}; these are the figures until then")
        traces = []
        for name in names:
            if fixed_length(name) is None and self.timelines.get(name):
                traces.append(self._trace(name))
        return FolderContent(comparisons, traces, notes, self.results.get("limits", {}))

    def _compared_sides(self) -> list[str]:
        """Return the sides that stand beside the baseline.

        Raises:
            ValueError: If there are none.
        """
        sides = self.results["sides"]
        others = [name for name in sides if name != BASELINE]
        method = self.provenance["method"]
        if method is None:
            raise ValueError(
                "plain decoding only, without a method beside it: not used for the decision"
            )
        if not sides:
            raise ValueError(
                "was stopped before a side had decoded all requests once: nothing to compare"
                if self.is_load
                else "was stopped before both sides had decoded a group of prompts: nothing to "
                "compare"
            )
        if BASELINE not in sides:
            raise ValueError(
                f"no plain decoding beside {', '.join(others)}: without a paired baseline, not used"
            )
        if not others:
            raise ValueError(
                "plain decoding only, without a method beside it: not used for the decision"
            )
        if not self.is_load and self.results["comparisons"][METHOD]["gain"] is None:
            raise ValueError(
                f"{method['name']} has no paired baseline (no group was decoded by both sides): "
                "not used"
            )
        return others

    @cached_property
    def workload(self) -> Workload:
        """Return what was decoded."""
        return workload_of(self.config, self.provenance)

    @cached_property
    def load(self) -> Load:
        """Return the load."""
        return load_of(self.config, self.summary)

    @property
    def timelines(self) -> Mapping[str, Any]:
        """Return the timelines of a load test, by side."""
        return self.results.get("timeline", {})

    def _policy(self, side: str) -> Policy:
        controller = self.provenance.get("controller")
        policy = policy_of(self.config, self.provenance["method"], side, controller)
        tree = section(self.config, "proposer").get("tree")
        if self.is_load or tree not in TREES:
            return policy
        return replace(policy, variant=f"{tree} tree")

    def _comparison(self, name: str) -> Comparison:
        measured = SideComparison.from_json(self.results["comparisons"][name])
        method, figures = self.provenance["method"], self.results["sides"]
        policy = self._policy(name)
        outputs = self.results["outputs"][name] if self.is_load else self.summary
        class_figures = {}
        for label, sides in self.results.get("classes", {}).items():
            class_figures[label] = {
                "baseline": sides.get(BASELINE, {}),
                "speculative": sides.get(name, {}),
            }
        return Comparison(
            folder=self.folder,
            workload=self.workload,
            load=self.load,
            policy=policy,
            gain=measured.gain,
            basis=measured.basis,
            baseline=self._side(BASELINE),
            speculative=self._side(name),
            ideal=measured.ideal_speedup,
            decode=measured.decode_speedup,
            output=Output.of(outputs, lossless=method["lossless"]),
            is_complete=self.results["complete"],
            num_requests=figures[name]["num_requests"],
            fingerprint=self.provenance["dataset"]["fingerprint"],
            started=self.provenance["started"],
            settings=distinguishing_settings(
                config_of(self.config, name), policy, method["num_draft_tokens"]
            ),
            is_overloaded=figures[name].get("overloaded", False),
            is_baseline_overloaded=figures[BASELINE].get("overloaded", False),
            classes=measured.classes if len(measured.classes) > 1 else (),
            class_figures=class_figures,
            max_running=self.summary.get("max_running"),
            is_interleaved=self.summary.get("turn_seconds", 0) is not None,
        )

    def _side(self, name: str) -> Side:
        intervals = self.results["side_intervals"][name]
        figures = {}
        for key, value in self.results["sides"][name].items():
            if value is not None and not isinstance(value, bool):
                figures[key] = Estimate(float(value), *(intervals.get(key) or (None, None)))
        acceptance = self.results["acceptance"].get(name)
        step = self.results["step_times"].get(name)
        return Side(
            figures,
            AcceptanceProfile.from_json(acceptance) if acceptance else None,
            StepTimes(**step) if step else None,
        )

    def _trace(self, name: str) -> Trace:
        policy, best = self._policy(name), self.summary["best_fixed"]
        labels = {name: policy.label, BASELINE: "plain decoding"}
        if best is not None:
            labels[best] = f"{self._policy(best).label}, best in hindsight"
        key = "speedup_over_best" if name == METHOD else f"speedup_over_best_{name}"
        timelines, throughputs = {}, {}
        for side, label in labels.items():
            throughput = self._side(side)["throughput"]
            if self.timelines.get(side):
                timelines[label] = self.timelines[side]
            if throughput is not None:
                throughputs[label] = throughput
        return Trace(
            folder=self.folder,
            workload=self.workload,
            load=self.load,
            policy=policy,
            timelines=timelines,
            throughputs=throughputs,
            best=labels[best] if best is not None else "",
            speedup_over_best=Estimate.of(self.summary[key], self.results["intervals"].get(key)),
            controller_estimates=tuple(self.results["controller"].get(name, ())),
        )
