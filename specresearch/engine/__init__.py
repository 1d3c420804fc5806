"""The loop that drafts, verifies and accepts."""

from specresearch.engine.engine import Engine, Watcher
from specresearch.engine.output import RequestFailedError, RequestOutput
from specresearch.engine.policies import FirstCome, Policy, ShortestPrompt
from specresearch.engine.settings import SchedulerSettings

__all__ = [
    "Engine",
    "FirstCome",
    "Policy",
    "RequestFailedError",
    "RequestOutput",
    "SchedulerSettings",
    "ShortestPrompt",
    "Watcher",
]
