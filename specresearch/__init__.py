"""Speculative decoding of language models.

Every method drafts for one verifier, and every result stands beside its baseline. The names below,
and those in `__all__` of `specresearch.acceptance`, `specresearch.controllers`,
`specresearch.engine` and `specresearch.proposers`, change only with an entry in CHANGELOG.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specresearch.acceptance import AcceptanceSampler
    from specresearch.batch import Batch
    from specresearch.calibration import calibrate
    from specresearch.clock import Clock
    from specresearch.controllers import Controller
    from specresearch.engine import (
        Engine,
        RequestFailedError,
        RequestOutput,
        SchedulerSettings,
        Step,
    )
    from specresearch.models import CausalLM
    from specresearch.proposal import Proposal, Verdict
    from specresearch.proposers import Proposer
    from specresearch.request import Request
    from specresearch.sampling import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "AcceptanceSampler",
    "Batch",
    "CausalLM",
    "Clock",
    "Controller",
    "Engine",
    "Proposal",
    "Proposer",
    "Request",
    "RequestFailedError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerSettings",
    "Step",
    "Verdict",
    "__version__",
    "calibrate",
]

# Imported on first use: help and wrong settings need no torch, which takes seconds to import.
_MODULES = {
    "AcceptanceSampler": "acceptance",
    "Batch": "batch",
    "CausalLM": "models",
    "Clock": "clock",
    "Controller": "controllers",
    "Engine": "engine",
    "Proposal": "proposal",
    "Proposer": "proposers",
    "Request": "request",
    "RequestFailedError": "engine",
    "RequestOutput": "engine",
    "SamplingParams": "sampling",
    "SchedulerSettings": "engine",
    "Step": "engine",
    "Verdict": "proposal",
    "calibrate": "calibration",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
