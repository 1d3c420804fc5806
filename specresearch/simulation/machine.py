"""A simulated machine: it moves the clock by what each part of a step takes."""

from collections.abc import Sequence
from dataclasses import replace

from specresearch.clock import ManualClock
from specresearch.simulation.timing import Timing, Work


class Machine:
    """Gathers the work of a step and spends the time that a timing model predicts for it.

    Target, proposer and rule call it from inside the engine's step, so that the time falls into the
    right lap of the clock.

    Attributes:
        clock: The clock of the engine that runs on this machine.
    """

    def __init__(self, timing: Timing, clock: ManualClock, *, can_draft: bool) -> None:
        self.timing = timing
        self.clock = clock
        self._no_work = Work(can_draft=can_draft)
        self._work = self._no_work

    def prefill(self, num_tokens: int) -> None:
        """Spend the time in which the target caches prompt tokens."""
        self._work = replace(self._work, num_prefill_tokens=num_tokens)
        self.clock.advance(self.timing.prefill_seconds(self._work))

    def lazy_prefill(self, num_tokens: int) -> None:
        """Spend the time in which the proposer caches tokens that it had put off."""
        self._work = replace(self._work, num_lazy_prefill_tokens=num_tokens)
        self.clock.advance(self.timing.lazy_prefill_seconds(self._work))

    def propose(self, contexts: Sequence[int], num_drafts: int, longest: int) -> None:
        """Spend the time of drafting.

        Args:
            contexts: Committed tokens of each row of the step, whether it drafts or not.
            num_drafts: Drafts of all rows.
            longest: Depth of the deepest draft.
        """
        self._work = replace(
            self._work,
            num_rows=len(contexts),
            num_drafts=num_drafts,
            longest=longest,
            context=sum(contexts),
        )
        self.clock.advance(self.timing.propose_seconds(self._work))

    def verify(self, contexts: Sequence[int], lengths: Sequence[int], longest: int) -> None:
        """Spend the time of the target's pass over every node.

        Args:
            contexts: Committed tokens of each row.
            lengths: Nodes of each row, root included.
            longest: Depth of the deepest draft.
        """
        attended = 0
        for context, length in zip(contexts, lengths, strict=True):
            attended += length * (context + length)
        self._work = replace(
            self._work,
            num_rows=len(contexts),
            num_drafts=sum(lengths) - len(lengths),
            longest=longest,
            num_nodes=max(lengths),
            context=sum(contexts),
            max_context=max(contexts),
            attended=attended,
        )
        self.clock.advance(self.timing.verify_seconds(self._work))

    def accept(self) -> None:
        """Spend the time of acceptance, commit and everything else on the host."""
        self.clock.advance(self.timing.overhead_seconds(self._work))

    def end_step(self) -> None:
        """Spend the time until the next step begins."""
        if not self._work.num_rows:
            self.accept()  # a step without rows, which has not come to acceptance
        self.clock.advance(self.timing.between_seconds(self._work))
        self._work = self._no_work
