"""The loop that drafts, verifies and accepts."""

from specresearch.engine.engine import Engine
from specresearch.engine.output import RequestFailedError, RequestOutput
from specresearch.engine.policies import FirstCome, Policy, ShortestPrompt
from specresearch.engine.settings import SchedulerSettings
from specresearch.engine.step import Step, StepObserver

__all__ = [
    "Engine",
    "FirstCome",
    "Policy",
    "RequestFailedError",
    "RequestOutput",
    "SchedulerSettings",
    "ShortestPrompt",
    "Step",
    "StepObserver",
]
