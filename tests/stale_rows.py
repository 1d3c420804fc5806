"""A broken method: layers that drafting skips keep rows of an earlier pass."""

from collections.abc import Sequence

from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import LayerSkip


class StaleRows(LayerSkip):
    """Take accepted drafts for cached, as if drafting had run all of the target's layers.

    The target's rows of the skipped layers stay as they were before verification.
    """

    def bind(self, target: CausalLM, num_slots: int) -> None:
        super().bind(target, num_slots)
        self.verifier = target

    def _skipped_rows(self) -> list[Tensor]:
        skipped = sorted(self.skipped_of(self.verifier).attention)
        return [rows for layer in skipped for rows in self.verifier.cache.buffers[layer]]

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        self._stale = [rows.clone() for rows in self._skipped_rows()]
        return super().propose(batch, budget)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        super().observe(batch, proposal, output, verdict)
        for slot, num_accepted in zip(batch.slots, verdict.num_accepted.tolist(), strict=True):
            end = self.verifier.lengths[slot]
            accepted = slice(end - num_accepted, end)
            for rows, stale in zip(self._skipped_rows(), self._stale, strict=True):
                rows[slot, accepted] = stale[slot, accepted]
