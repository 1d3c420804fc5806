"""Longer drafts after success, shorter ones after failure."""

from dataclasses import dataclass

from specresearch.batch import Batch
from specresearch.controllers.base import check_chains
from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.trace import TracedController
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind


@dataclass
class _DraftLength:
    tokens: int


class Heuristic(TracedController):
    """Per request: two more drafts after a fully accepted draft, one less after any other.

    This is the schedule of assisted generation in the transformers library. It needs no step times
    and never stops drafting.
    """

    per_request = True

    def __init__(
        self,
        start: int = 5,
        min_draft_tokens: int = 1,
        max_draft_tokens: int = 20,
        trace_every: int = 100,
    ) -> None:
        if not 1 <= min_draft_tokens <= start <= max_draft_tokens:
            raise ValueError(
                f"controller.min_draft_tokens={min_draft_tokens}, start={start}, "
                f"max_draft_tokens={max_draft_tokens}: "
                "need 1 <= min_draft_tokens <= start <= max_draft_tokens"
            )
        super().__init__(trace_every)
        self.start = start
        self.min_draft_tokens = min_draft_tokens
        self.max_draft_tokens = max_draft_tokens
        self._max_length = max_draft_tokens
        self._lengths = PerRequest(lambda: _DraftLength(min(self.start, self._max_length)))

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        check_chains(self, kind)
        self._max_length = min(self.max_draft_tokens, num_draft_tokens)

    def budget(self, batch: Batch) -> list[int | None]:
        return [length.tokens for length in self._lengths.select(batch.rows)]

    def observe(self, record: StepRecord) -> None:
        lengths = self._lengths.selected
        self._trace.add(mean_length=sum(length.tokens for length in lengths) / len(lengths))
        rows = zip(lengths, record.num_accepted_tokens, record.num_draft_tokens, strict=True)
        for length, num_accepted, num_drafts in rows:
            if num_drafts:
                changed = length.tokens + (2 if num_accepted == num_drafts else -1)
                length.tokens = min(max(changed, self.min_draft_tokens), self._max_length)

    def reset(self) -> None:
        super().reset()
        self._lengths.clear()
