"""Grammars within a step: what may follow each node of the drafts of rows that have one."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch, HostDrafts
from specresearch.grammar import BITS
from specresearch.proposal import Proposal, upload


@dataclass(frozen=True)
class GrammarMasks:
    """Masks the tokens that each row's grammar forbids.

    Attributes:
        drafts: None if no row has a grammar.
    """

    batch: Batch
    drafts: HostDrafts | None

    @staticmethod
    def of(batch: Batch, proposal: Proposal) -> "GrammarMasks":
        """Prepare masks before the target runs.

        Drafts are brought to the host first, so that grammars are followed while a GPU is busy with
        the target. Steps with a grammar wait once more for the device than others.
        """
        has_any = any(row.grammar is not None for row in batch.rows)
        return GrammarMasks(batch, HostDrafts.of(proposal) if has_any else None)

    def apply(self, logits: Float[Tensor, "B N V"]) -> tuple[Float[Tensor, "B N V"], list[int]]:
        """Return logits with -inf for forbidden tokens, and the rows that failed.

        Args:
            logits: Not modified.
        """
        if self.drafts is None:
            return logits, []
        parents = np.broadcast_to(self.drafts.parents, self.drafts.tokens.shape)
        rows, masks, failed = [], [], []
        for b, row in enumerate(self.batch.rows):
            if row.grammar is None:
                continue
            row.grammar.advance(row.output_ids)
            drafted = self.drafts.acceptable[b]
            rows.append(b)
            masks.append(row.grammar.masks(self.drafts.tokens[b], parents[b], drafted))
            if row.grammar.has_failed:
                failed.append(b)
        device = logits.device
        packed = torch.from_numpy(np.stack(masks)).to(device, non_blocking=True)  # [R, N, V / 8]
        bits = packed[..., None] >> torch.arange(BITS, dtype=torch.uint8, device=device)
        is_forbidden = (bits & 1 == 0).flatten(2)[..., : logits.shape[-1]]
        index = upload(rows, device)
        masked = logits.index_select(0, index).masked_fill(is_forbidden, float("-inf"))
        return logits.index_copy(0, index, masked), failed
