"""A folder of `python -m specresearch.simulate`: what it foresaw, to lay over what was measured of the same setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specresearch.reporting.comparisons import Comparison, Load, Policy, Workload
from specresearch.reporting.reading import (
    FIXED,
    controller_of,
    fixed_length_of,
    inner,
    load_of,
    load_workload_of,
    number,
    read_config,
    settings_of,
)
from specresearch.rows import BASELINE, METHOD

FITTED = "Fitted"  # the timing that is of the recorded machine


@dataclass(frozen=True)
class Prediction:
    """What a simulation says of one side that drafts. workload: the recorded one. own: figures by name."""

    folder: Path
    workload: Workload
    load: Load
    policy: Policy
    settings: Mapping[str, Any]
    max_running: int | None
    own: Mapping[str, float]

    def is_of(self, measured: Comparison) -> bool:
        """The same setting of the same method at the same load. Recordings do not know how many threads their machine used."""
        own, other = (replace(one.workload, machine="", distinction="") for one in (self, measured))
        on_same_machine = measured.workload.machine.startswith(self.workload.machine)
        policies = [(p.method, p.controller, p.length) for p in (self.policy, measured.policy)]
        is_same = (
            own == other
            and on_same_machine
            and policies[0] == policies[1]
            and self.load == measured.load
        )
        return is_same and self.settings == measured.settings and self._has_room_of(measured)

    def _has_room_of(self, measured: Comparison) -> bool:
        rooms = self.max_running, measured.max_running
        never_waits = self.load.is_closed and all(
            room is not None and room >= self.load.amount for room in rooms
        )
        return rooms[0] == rooms[1] or never_waits


@dataclass(frozen=True)
class Foreseen:
    """A prediction beside what came of it."""

    prediction: Prediction
    measured: Comparison


def read_simulation(folder: Path, results: Mapping[str, Any]) -> list[Prediction]:
    """ValueError for one without drafts, or of another machine than the recorded one."""
    config, provenance, summary = read_config(folder), results["provenance"], results["summary"]
    timing = str(inner(config, "timing").get("_target_", "")).rpartition(".")[2]
    if timing != FITTED:
        raise ValueError(
            f"a simulation of another machine ({provenance['timing']}), of which nothing was measured here"
        )
    sides = {name: _figures(side) for name, side in results["sides"].items()}
    if METHOD not in sides:
        raise ValueError("a simulation of plain decoding only: not used")
    recorded = provenance["recorded"]
    own = recorded["config"] | {
        key: config[key] for key in ("controller", "acceptance") if config.get(key)
    }
    told = {"target": recorded["target"], "machine": {"device": recorded["machine"]}}
    workload, load = load_workload_of(own, told), load_of(summary)
    predictions = []
    for name, side in sides.items():
        if name == BASELINE:
            continue
        length = fixed_length_of(name)
        controller = FIXED if length is not None else controller_of(config, provenance)
        asked = (
            inner(config, "controller").get("num_draft_tokens") or provenance["num_draft_tokens"]
        )
        length = length if length is not None else asked if controller == FIXED else None
        policy = Policy(str(recorded["method"]), controller, length)
        settings = settings_of(own, controller, provenance["num_draft_tokens"])
        room = summary.get("max_running")
        predictions.append(Prediction(folder, workload, load, policy, settings, room, side))
    return predictions


def overlay(predictions: Sequence[Prediction], comparisons: Sequence[Comparison]) -> list[Foreseen]:
    return [
        Foreseen(one, measured)
        for one in predictions
        for measured in comparisons
        if one.is_of(measured)
    ]


def _figures(side: Mapping[str, Any]) -> dict[str, float]:
    told = {name: number(value) for name, value in side.items()}
    return {name: value for name, value in told.items() if value is not None}
