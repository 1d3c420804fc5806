"""The folder of a simulation: its predictions, beside what was measured with the same setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.settings import (
    class_name,
    distinguishing_settings,
    load_of,
    policy_of,
    section,
    workload_of,
)
from specresearch.reporting.workload import Load, Policy, Workload
from specresearch.results.folder import read_config
from specresearch.rows import BASELINE, METHOD

FITTED = "Fitted"  # the timing of the recorded machine


@dataclass(frozen=True)
class Prediction:
    """What a simulation predicts of one side that drafts.

    Attributes:
        workload: The recorded one.
        figures: The side's figures by name.
    """

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    settings: Mapping[str, Any]
    max_running: int | None
    figures: Mapping[str, float]

    def is_of(self, measured: Comparison) -> bool:
        """Return whether a comparison is of the same setting at the same load.

        Recordings do not know how many threads their machine used.
        """
        own = replace(self.workload, machine="", distinction="")
        other = replace(measured.workload, machine="", distinction="")
        is_same_policy = replace(self.policy, variant="") == replace(measured.policy, variant="")
        return (
            own == other
            and measured.workload.machine.startswith(self.workload.machine)
            and is_same_policy
            and self.load == measured.load
            and self.settings == measured.settings
            and self._has_room_of(measured)
        )

    def _has_room_of(self, measured: Comparison) -> bool:
        """Return whether as many requests may run, or no request ever waits on either side."""
        if self.max_running == measured.max_running:
            return True
        if self.max_running is None or measured.max_running is None:
            return False
        least = min(self.max_running, measured.max_running)
        return self.load.is_closed and least >= self.load.amount


@dataclass(frozen=True)
class CheckedPrediction:
    """A prediction beside what was measured."""

    prediction: Prediction
    measured: Comparison


def read_simulation(folder: Path, results: Mapping[str, Any]) -> list[Prediction]:
    """Return the predictions of a simulation.

    Raises:
        ValueError: If it is of another machine than the recorded one, or nothing drafts.
    """
    config, provenance, summary = read_config(folder), results["provenance"], results["summary"]
    if class_name(section(config, "timing")) != FITTED:
        raise ValueError(
            f"a simulation of another machine ({provenance['timing']}), of which nothing was "
            "measured here"
        )
    if METHOD not in results["sides"]:
        raise ValueError("a simulation of plain decoding only: not used")
    recorded, num_draft_tokens = provenance["recorded"], provenance["num_draft_tokens"]
    settings = dict(recorded["config"])
    for key in ("controller", "acceptance"):
        settings |= {key: config[key]} if config.get(key) else {}
    origin = {"target": recorded["target"], "machine": {"device": recorded["machine"]}}
    method = {"name": recorded["method"], "num_draft_tokens": num_draft_tokens}
    predictions = []
    for name, figures in results["sides"].items():
        if name == BASELINE:
            continue
        policy = policy_of(settings, method, name, provenance["controller"])
        prediction = Prediction(
            folder=folder,
            workload=workload_of(settings, origin),
            load=load_of(config, summary),
            policy=policy,
            settings=distinguishing_settings(settings, policy, num_draft_tokens),
            max_running=summary["max_running"],
            figures={key: value for key, value in figures.items() if value is not None},
        )
        predictions.append(prediction)
    return predictions


def check_predictions(
    predictions: Sequence[Prediction], comparisons: Sequence[Comparison]
) -> list[CheckedPrediction]:
    """Return every prediction beside each comparison of its setting."""
    checked = []
    for prediction in predictions:
        for measured in comparisons:
            if prediction.is_of(measured):
                checked.append(CheckedPrediction(prediction, measured))
    return checked
