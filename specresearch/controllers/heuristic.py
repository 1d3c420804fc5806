"""Longer drafts after success, shorter ones after failure."""

from dataclasses import dataclass

from specresearch.batch import Batch
from specresearch.controllers.base import Controller, check_chains
from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.trace import Trace
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind


@dataclass
class _Length:
    drafts: int


class Heuristic(Controller):
    """Per request: two drafts more after one that was accepted whole, one less after any other, within bounds.

    The schedule of assisted generation in the transformers library. It needs no times and never stops drafting.
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
                f"controller.min_draft_tokens={min_draft_tokens}, start={start}, max_draft_tokens={max_draft_tokens}: "
                "need 1 <= min_draft_tokens <= start <= max_draft_tokens"
            )
        self.start, self.min_draft_tokens, self.max_draft_tokens = (
            start,
            min_draft_tokens,
            max_draft_tokens,
        )
        self._most = max_draft_tokens
        self._lengths = PerRequest(lambda: _Length(min(self.start, self._most)))
        self._trace = Trace(trace_every)

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        check_chains(self, kind)
        self._most = min(self.max_draft_tokens, num_draft_tokens)

    def budget(self, batch: Batch) -> list[int | None]:
        return [length.drafts for length in self._lengths.meet(batch.rows)]

    def observe(self, record: StepRecord) -> None:
        lengths = self._lengths.met
        self._trace.add(mean_length=sum(length.drafts for length in lengths) / len(lengths))
        for length, accepted, drafted in zip(
            lengths, record.num_accepted_tokens, record.num_draft_tokens, strict=True
        ):
            if drafted:
                longer = length.drafts + (2 if accepted == drafted else -1)
                length.drafts = min(max(longer, self.min_draft_tokens), self._most)

    def reset(self) -> None:
        self._lengths.clear()
        self._trace.clear()

    def trace(self) -> list[dict[str, float]]:
        return self._trace.rows()
