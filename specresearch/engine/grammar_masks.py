"""Grammars within a step: what may follow each node of the drafts of rows that have one."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from specresearch.batch import Batch, HostDrafts
from specresearch.grammar import ALL_ALLOWED
from specresearch.proposal import Proposal

_BITS = 8


@dataclass(frozen=True)
class GrammarMasks:
    """Refuses the tokens that the grammars of a batch refuse.

    Made before the target runs: drafts are brought to the host then, and the grammars follow them
    while a GPU is busy with the target.

    Args:
        drafts: None if no row has a grammar.
    """

    batch: Batch
    drafts: HostDrafts | None

    @staticmethod
    def of(batch: Batch, proposal: Proposal) -> "GrammarMasks":
        has_any = any(row.grammar is not None for row in batch.rows)
        return GrammarMasks(batch, HostDrafts.of(proposal) if has_any else None)

    def apply(self, logits: Float[Tensor, "B N V"]) -> tuple[Float[Tensor, "B N V"], list[int]]:
        """Return logits that are -inf where a token is refused, and the rows that failed.

        Args:
            logits: They stay as they are.
        """
        if self.drafts is None:
            return logits, []
        num_rows, num_nodes, vocab_size = logits.shape
        parents = np.broadcast_to(self.drafts.parents, self.drafts.tokens.shape)
        allowed: dict[int, UInt8[np.ndarray, "N _"]] = {}
        failed: list[int] = []
        for b, row in enumerate(self.batch.rows):
            if row.grammar is None:
                continue
            row.grammar.read(row.output_ids)
            drafted = self.drafts.acceptable[b]
            allowed[b] = row.grammar.masks(self.drafts.tokens[b], parents[b], drafted)
            if row.grammar.has_failed:
                failed.append(b)
        num_bytes = len(next(iter(allowed.values()))[0])
        packed = np.full((num_rows, num_nodes, num_bytes), ALL_ALLOWED, np.uint8)
        for b, masks in allowed.items():
            packed[b] = masks
        masks = torch.from_numpy(packed).to(logits.device, non_blocking=True)
        bits = masks[..., None] >> torch.arange(_BITS, dtype=torch.uint8, device=logits.device)
        is_refused = (bits & 1 == 0).flatten(2)[..., :vocab_size]
        return logits.masked_fill(is_refused, float("-inf")), failed
