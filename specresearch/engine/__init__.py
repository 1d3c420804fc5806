"""The loop that drafts, verifies and accepts."""

from specresearch.engine.engine import Engine
from specresearch.engine.output import RequestFailedError, RequestOutput
from specresearch.engine.policies import AdmissionPolicy, FirstCome, ShortestPrompt
from specresearch.engine.settings import SchedulerSettings
from specresearch.engine.step import Step, StepObserver

__all__ = [
    "AdmissionPolicy",
    "Engine",
    "FirstCome",
    "RequestFailedError",
    "RequestOutput",
    "SchedulerSettings",
    "ShortestPrompt",
    "Step",
    "StepObserver",
]
