"""Rules that decide how much to speculate."""

from specresearch.controllers.acceptance_gate import AcceptanceGate
from specresearch.controllers.base import Controller, draft_demand
from specresearch.controllers.batch_size_cutoff import BatchSizeCutoff
from specresearch.controllers.confidence import Confidence
from specresearch.controllers.fixed import Fixed
from specresearch.controllers.goodput import Goodput
from specresearch.controllers.heuristic import Heuristic

__all__ = [
    "AcceptanceGate",
    "BatchSizeCutoff",
    "Confidence",
    "Controller",
    "Fixed",
    "Goodput",
    "Heuristic",
    "draft_demand",
]
