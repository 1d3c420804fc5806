"""A proposer that makes steps only when a test allows them, or fails."""

import threading
from collections.abc import Sequence

from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers import NGram

SECONDS = 60.0  # after which a step that nobody allows fails


class Stepwise(NGram):
    """Waits before every step.

    Attributes:
        failing: Raise in the next steps.
    """

    def __init__(self) -> None:
        super().__init__(4)
        self.failing = False
        self._permits = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._permits.release()

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not self._permits.acquire(timeout=SECONDS):
            raise TimeoutError("no test allowed this step")
        if self.failing:
            raise RuntimeError("secret of the proposer, in /a/secret/path.py")
        return super().propose(batch, budget)
