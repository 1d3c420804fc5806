"""What the target will say next: it is asked in the requests' own slots."""

import copy
from collections.abc import Sequence

import torch

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM
from specresearch.request import RequestState
from specresearch.sampling import argmax, penalize


class Oracle:
    """Decodes ahead of running requests, plainly and greedily, and leaves no trace in the cache.

    A slot's columns behind its committed tokens are free, so that the continuation is written
    there and dropped: the next pass overwrites it.
    """

    def __init__(self, target: CausalLM) -> None:
        self.target = target

    @torch.inference_mode()
    def foresee(
        self,
        batch: Batch,
        rows: Sequence[RequestState],
        known: Sequence[Sequence[int]],
        nums: Sequence[int],
    ) -> list[list[int]]:
        """Return what follows each row and what is known to follow it.

        Args:
            rows: Rows of the batch.
            known: Tokens that are known to follow each row's own.
            nums: Tokens to find for each row, at least one and at most as many as it may generate.
        """
        slots = [row.slot for row in rows]
        committed = [self.target.lengths[slot] for slot in slots]
        scouts = [_scout(row, ahead) for row, ahead in zip(rows, known, strict=True)]
        ends = [len(scout.tokens) + num for scout, num in zip(scouts, nums, strict=True)]
        fed = [scout.tokens[begin:] for scout, begin in zip(scouts, committed, strict=True)]
        running = list(range(len(rows)))
        try:
            while running:
                ahead = Batch([scouts[i] for i in running], batch.device, batch.vocab_size)
                output = self.target.extend(ahead.slots, [fed[i] for i in running])
                tokens = argmax(penalize(output.logits, ahead.sampling))[:, 0].tolist()
                for i, token in zip(running, tokens, strict=True):
                    scouts[i].tokens.append(token)
                    fed[i] = [token]
                running = [i for i in running if len(scouts[i].tokens) < ends[i]]
        finally:
            self.target.truncate(slots, committed)
        return [scout.newest(num) for scout, num in zip(scouts, nums, strict=True)]


def _scout(row: RequestState, ahead: Sequence[int]) -> RequestState:
    """Return a copy of a row that runs ahead of it."""
    scout = copy.copy(row)
    scout.tokens = [*row.tokens, *ahead]
    return scout
