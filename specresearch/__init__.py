"""Speculative decoding of language models.

Every method drafts for one verifier, and every result stands beside its baseline. The names below,
and those in `__all__` of `specresearch.acceptance`, `specresearch.controllers`,
`specresearch.engine` and `specresearch.proposers`, change only with an entry in CHANGELOG.md.
"""

from specresearch.acceptance import AcceptanceSampler
from specresearch.batch import Batch
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
]
