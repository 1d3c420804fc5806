"""The loop that drafts, verifies and accepts."""

from specresearch.engine.engine import Engine, RequestOutput, Watcher
from specresearch.engine.policies import FirstCome, Policy, ShortestPrompt
from specresearch.engine.settings import SchedulerSettings

__all__ = ["Engine", "FirstCome", "Policy", "RequestOutput", "SchedulerSettings", "ShortestPrompt", "Watcher"]
