"""No speculation while many requests run: a busy device has no idle arithmetic left for drafts that may be refused."""

from specresearch.batch import Batch
from specresearch.controllers.base import Controller, check_num_draft_tokens


class BatchSizeCutoff(Controller):
    """Every request drafts while at most `max_requests` of them run, and none while more do.

    num_draft_tokens: drafts below the cutoff; None leaves the number to the proposer's own setting.
    """

    def __init__(self, max_requests: int = 8, num_draft_tokens: int | None = None) -> None:
        if max_requests < 1:
            raise ValueError(
                f"controller.max_requests={max_requests} must be at least 1; to decode plainly use controller=fixed "
                "controller.num_draft_tokens=0"
            )
        self.max_requests = max_requests
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.num_draft_tokens if len(batch) <= self.max_requests else 0] * len(batch)
