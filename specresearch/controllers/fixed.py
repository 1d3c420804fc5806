"""The same number of drafts for every request at every step."""

from specresearch.batch import Batch
from specresearch.controllers.base import Controller, check_num_draft_tokens


class Fixed(Controller):
    """Drafts a fixed number of tokens.

    Args:
        num_draft_tokens: None leaves the number to the proposer; 0 turns speculation off.
    """

    per_request = True

    def __init__(self, num_draft_tokens: int | None = None) -> None:
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.num_draft_tokens] * len(batch)
