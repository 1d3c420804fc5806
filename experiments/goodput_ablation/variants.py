"""Goodput without one of its mechanisms, by name."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.optimize

from specresearch.batch import Batch
from specresearch.controllers import (
    Goodput,
    decision_schedule,
    evidence,
    first_steps,
    goodput,
    time_account,
    tree_size,
    window_fit,
)
from specresearch.controllers.evidence import Evidence
from specresearch.controllers.prefill_cost import PrefillCost
from specresearch.controllers.score_calibration import ScoreCalibration
from specresearch.controllers.step_time import StepTime
from specresearch.metrics import StepRecord
from specresearch.proposal import Proposal


@dataclass(frozen=True)
class Without:
    """Goodput without one of its mechanisms.

    Attributes:
        settings: Of the controller.
        constants: Constants of its modules that are set to other values, by module.
        methods: Methods that are replaced, by class.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    constants: dict[ModuleType, dict[str, Any]] = field(default_factory=dict)
    methods: dict[type, dict[str, Any]] = field(default_factory=dict)

    def __call__(self) -> Goodput:
        return Goodput(**self.settings)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, values in (*self.constants.items(), *self.methods.items()):
                stack.enter_context(patch.multiple(owner, **values))
            yield


def verifies_all(self: Goodput, proposal: Proposal) -> Proposal:
    self._tree = None
    return proposal


def negative_set_to_0(matrix: np.ndarray, vector: np.ndarray) -> tuple[np.ndarray]:
    return (np.linalg.lstsq(matrix, vector)[0].clip(min=0.0),)


def one_share(self: Evidence) -> tuple[np.ndarray, np.ndarray]:
    rate = (self._accepted.sum() + 0.5) / (self._tried.sum() + 1)
    return np.ones(len(self._tried)), np.full(len(self._tried), rate)


def observe_all(self: StepTime, record: StepRecord, depth: int, num_drafting: int) -> dict:
    self._last_depth = depth
    return OBSERVE(self, record, depth, num_drafting)


def observe_work(self: StepTime, record: StepRecord, depth: int, num_drafting: int) -> dict:
    times = replace(record.times, total=record.times.work, control=0.0)
    return OBSERVE(self, replace(record, times=times), depth, num_drafting)


def decides_always(self: Goodput, batch: Batch) -> list[int | None]:
    schedule = self._schedule
    if not schedule.is_trial:
        schedule._next = min(schedule._next, max(schedule.step, len(self._first)))
    return BUDGET(self, batch)


OBSERVE, BUDGET = StepTime.observe, Goodput.budget
VARIANTS: dict[str, Without] = {
    "goodput": Without(),
    "no trials": Without({"explore": 0.0}),
    "late drafts go on": Without(constants={goodput: {"_OVERRUN": 1e9}}),
    "plain steps not tried": Without(constants={goodput: {"_DOUBT": 0.0}}),
    "no margin": Without({"margin": 0.0}),
    "one acceptance for all requests": Without({"prior_weight": 1e9}),
    "a request's own acceptance alone": Without({"prior_weight": 1e-3}),
    "a request forgets nothing": Without(constants={evidence: {"_REQUEST_MEMORY": 1e9}}),
    "few requests forgotten as soon as many": Without(constants={evidence: {"_MANY": 1.0}}),
    "one acceptance for all levels": Without(methods={Evidence: {"_shares": one_share}}),
    "nothing is forgotten": Without({"memory": 1e6}),
    "a decision in every step": Without(methods={Goodput: {"budget": decides_always}}),
    "decisions hold for two steps": Without(
        constants={decision_schedule: {"MOST_DRAFTING": 2, "MOST_IDLE": 2}}
    ),
    "no early share": Without(constants={time_account: {"_EARLY": 0.0}}),
    "all draft at the start": Without(constants={first_steps: {"_FRACTION": 1}}),
    "one round of reweighting": Without(constants={window_fit: {"_ROUNDS": 1}}),
    "negative weights set to 0": Without(constants={scipy.optimize: {"nnls": negative_set_to_0}}),
    "windows of 8": Without(constants={window_fit: {"_WINDOW": 8}}),
    "windows of 64": Without(constants={window_fit: {"_WINDOW": 64}}),
    "first steps of a depth counted": Without(methods={StepTime: {"observe": observe_all}}),
    "lazy prefill unknown": Without(methods={PrefillCost: {"seconds_each": 0.0}}),
    "newcomers' prefill unknown": Without(
        methods={PrefillCost: {"of_all": lambda self, batch: np.zeros(len(batch))}}
    ),
    "own time unknown": Without(methods={StepTime: {"observe": observe_work}}),
    "all nodes verified": Without(methods={Goodput: {"trim": verifies_all}}),
    "trees drafted whole": Without(constants={tree_size: {"_SPARE": 1e6}}),
    "nodes chosen in every step": Without(constants={tree_size: {"_FEW": 0}}),
    "scores believed": Without(methods={ScoreCalibration: {"observe": lambda *args: None}}),
}
