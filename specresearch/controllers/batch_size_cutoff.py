"""No speculation in large batches: a busy device has no idle arithmetic left for drafts."""

from specresearch.batch import Batch
from specresearch.controllers.base import AT_LEAST_ONE, Controller, check, check_num_draft_tokens


class BatchSizeCutoff(Controller):
    """Every request drafts while at most `max_requests` of them run; otherwise none does.

    Args:
        num_draft_tokens: Drafts below the cutoff; None leaves the number to the proposer.
    """

    def __init__(self, max_requests: int = 8, num_draft_tokens: int | None = None) -> None:
        check("max_requests", max_requests, max_requests >= 1, AT_LEAST_ONE)
        self.max_requests = max_requests
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)

    def budget(self, batch: Batch) -> list[int | None]:
        drafts = len(batch) <= self.max_requests
        return [self.num_draft_tokens if drafts else 0] * len(batch)
