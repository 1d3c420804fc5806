"""The folder of a run, a load test or a simulation, as comparisons of its sides."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.estimate import Estimate
from specresearch.bench.output_verdict import outputs_of
from specresearch.bench.side_comparison import MeanStepTimes, SideComparison
from specresearch.reporting.commands import Command
from specresearch.reporting.comparison import Comparison, SideFigures
from specresearch.reporting.config import (
    class_name,
    config_of,
    distinguishing_details,
    fixed_length,
    load_of,
    section,
    setting_of,
    workload_of,
)
from specresearch.reporting.workload import Setting
from specresearch.results.folder import read_config
from specresearch.rows import BASELINE, METHOD

FITTED = "Fitted"  # the timing of the recorded machine
PLAIN_ONLY = "plain decoding only, without a method beside it: not used for the decision"


def read_measurements(folder: Path, results: Mapping[str, Any]) -> list[Comparison]:
    """Return the sides of a run or a load test, each compared with the baseline.

    Raises:
        ValueError: If nothing stands beside the baseline.
    """
    reader = FolderReader(folder, results, read_config(folder), results["provenance"])
    return [reader.comparison(name) for name in _compared_sides(results)]


def read_predictions(folder: Path, results: Mapping[str, Any]) -> list[Comparison]:
    """Return what a simulation predicts of its sides, without the baseline.

    Raises:
        ValueError: If it is of another machine than the recorded one, or nothing drafts.
    """
    config, provenance, sides = read_config(folder), results["provenance"], results["sides"]
    if class_name(section(config, "timing")) != FITTED:
        raise ValueError(
            f"a simulation of another machine ({provenance['timing']}), of which nothing was "
            "measured here"
        )
    if METHOD not in sides:
        raise ValueError("a simulation of plain decoding only: not used")
    recorded, num_draft_tokens = provenance["recorded"], provenance["num_draft_tokens"]
    settings = dict(recorded["config"])
    for key in ("controller", "acceptance"):
        if config.get(key):
            settings[key] = config[key]
    origin = {
        "target": recorded["target"],
        "machine": {"device": recorded["machine"]},
        "method": {"name": recorded["method"], "num_draft_tokens": num_draft_tokens},
        "controller": provenance["controller"],
    }
    reader = FolderReader(folder, results, settings, origin)
    return [reader.side(name) for name in sides if name != BASELINE]


class FolderReader:
    """Reads one folder.

    Args:
        results: What results.json holds.
        config: Settings of what was measured, or recorded for a simulation.
        provenance: Its origin.
    """

    def __init__(
        self,
        folder: Path,
        results: Mapping[str, Any],
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.results = results
        self.config = config
        self.provenance = provenance
        self.summary = results["summary"]
        self.is_load = "kind" in results

    def side(self, name: str) -> Comparison:
        """Return a side without the baseline."""
        setting, method = self._setting(name), self.provenance["method"]
        config = config_of(self.config, name)
        return Comparison(
            gain=None,
            folder=self.folder,
            workload=workload_of(self.config, self.provenance),
            load=load_of(self.config, self.summary),
            setting=setting,
            details=distinguishing_details(config, setting, method),
            max_running=self.summary.get("max_running"),
            speculative=self._figures(name),
        )

    def comparison(self, name: str) -> Comparison:
        """Return a side beside the baseline."""
        measured = SideComparison.from_json(self.results["comparisons"][name])
        sides = self.results["sides"]
        return replace(
            self.side(name),
            gain=measured.gain,
            basis=measured.basis,
            decode_speedup=measured.decode_speedup,
            ideal_speedup=measured.ideal_speedup,
            classes=measured.classes if len(measured.classes) > 1 else (),
            baseline=self._figures(BASELINE),
            output=outputs_of(self.results)[name],
            is_complete=self.results["complete"],
            num_requests=sides[name]["num_requests"],
            fingerprint=self.provenance["dataset"]["fingerprint"],
            started=self.provenance["started"],
            is_overloaded=sides[name].get("overloaded", False),
            is_baseline_overloaded=sides[BASELINE].get("overloaded", False),
            is_interleaved=self.summary.get("turn_seconds", 0) is not None,
            is_served="servers" in self.provenance,
            unpaired=self.summary.get("unpaired") or "",
            failures=self._failures(name),
            over_best=self._over_best(name),
            step_seconds=self._step_seconds(name),
            takes_length="num_draft_tokens" in section(self.config, "proposer"),
            is_sample=self.provenance["dataset"].get("kind") == "sample",
            command=Command.of(self.folder, "load" if self.is_load else "run", self.provenance),
        )

    def _failures(self, name: str) -> str:
        """Return how many requests of a side and of the baseline failed, in words."""
        words = []
        for side in (BASELINE, name):
            kinds = self.results.get("failures", {}).get(side, {})
            words += [f"{number} {kind} ({side})" for kind, number in kinds.items()]
        return ", ".join(words)

    def _setting(self, side: str) -> Setting:
        controller = self.provenance.get("controller")
        return setting_of(self.config, self.provenance["method"], side, controller)

    def _figures(self, name: str) -> SideFigures:
        intervals = self.results["side_intervals"][name]
        figures = {}
        for key, value in self.results["sides"][name].items():
            if value is not None and not isinstance(value, bool):
                figures[key] = Estimate(float(value), *(intervals.get(key) or (None, None)))
        acceptance = self.results["acceptance"].get(name)
        step = self.results["step_times"].get(name)
        return SideFigures(
            figures,
            AcceptanceProfile.from_json(acceptance) if acceptance else None,
            MeanStepTimes(**step) if step else None,
        )

    def _over_best(self, name: str) -> Estimate | None:
        """Return the throughput over the best reference's; None for a fixed length."""
        if fixed_length(name) is not None or self.summary.get("best_fixed") is None:
            return None
        # Variants of the controller have figures of their own.
        key = "speedup_over_best" if name == METHOD else f"speedup_over_best_{name}"
        return Estimate.of(self.summary[key], self.results["intervals"].get(key))

    def _step_seconds(self, name: str) -> tuple[float, float] | None:
        """Return the mean of a controller's estimates and of the times they are of."""
        estimated, measured = [], []
        for row in self.results.get("controller", {}).get(name, ()):
            if row.get("estimated_seconds"):
                estimated.append(row["estimated_seconds"])
                measured.append(row["measured_seconds"])
        return (fmean(estimated), fmean(measured)) if estimated else None


def _compared_sides(results: Mapping[str, Any]) -> list[str]:
    """Return the sides that stand beside the baseline.

    Raises:
        ValueError: If there are none.
    """
    sides, method = results["sides"], results["provenance"]["method"]
    others = [name for name in sides if name != BASELINE]
    if method is None:
        raise ValueError(PLAIN_ONLY)
    if not sides:
        half = "both sides had decoded a group of prompts"
        if "kind" in results:
            half = "a side had decoded all requests once"
        raise ValueError(f"was stopped before {half}: nothing to compare")
    if BASELINE not in sides:
        raise ValueError(
            f"no plain decoding beside {', '.join(others)}: without a paired baseline, not used"
        )
    if not others:
        raise ValueError(PLAIN_ONLY)
    if "kind" not in results and results["comparisons"][METHOD]["gain"] is None:
        raise ValueError(
            f"{method['name']} has no paired baseline (no group was decoded by both sides): "
            "not used"
        )
    return others
