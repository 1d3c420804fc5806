"""What a draft with a tokenizer of its own wrote in a step, and the proposal that it makes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.translation import Translation
from specresearch.proposal import Proposal, upload
from specresearch.proposers.scored_chain import scored_chain
from specresearch.proposers.spelled import spell_drafts
from specresearch.proposers.transcripts import Spelled, Unit
from specresearch.readback import Readback


@dataclass(frozen=True)
class Written:
    """Steps of a draft, in ids of its own.

    Attributes:
        ids: What it wrote and reads on.
        tokens: The target's token of each id, unless it is spelled.
        is_spelled: Whether text was written, in which the target's tokens are yet to be found.
            It is never drawn, and all after it is text too.
        chances: The draft's probability of each id.
        draft_probs: What each token was drawn from; None if nothing was drawn.
    """

    ids: Int[Tensor, "B K"]
    tokens: Int[Tensor, "B K"]
    is_spelled: Bool[Tensor, "B K"]
    chances: Float[Tensor, "B K"]
    draft_probs: Float[Tensor, "B K V"] | None

    @staticmethod
    def joined(steps: Sequence["Written"]) -> "Written":
        """Return steps after one another."""
        probs = [step.draft_probs for step in steps if step.draft_probs is not None]
        return Written(
            ids=torch.cat([step.ids for step in steps], dim=1),
            tokens=torch.cat([step.tokens for step in steps], dim=1),
            is_spelled=torch.cat([step.is_spelled for step in steps], dim=1),
            chances=torch.cat([step.chances for step in steps], dim=1),
            draft_probs=torch.cat(probs, dim=1) if probs else None,
        )

    def offer(
        self, batch: Batch, budget: Sequence[int], translation: Translation
    ) -> tuple[Proposal, list[Spelled]]:
        """Return the drafts as a proposal, and how the draft wrote them.

        The drafts of a row depend on its own budget only. Spelled drafts are point masses.
        """
        readback = Readback()
        parts = readback.add_all([self.ids, self.tokens, self.is_spelled, self.chances])
        readback.fetch()  # sync
        rows = []
        for b, (row, allowed) in enumerate(zip(batch.rows, budget, strict=True)):
            ids, tokens, is_spelled, chances = (part.values[b].tolist() for part in parts)
            num_drawn = allowed - sum(is_spelled[:allowed])
            rows.append(_Row.of(translation, row.tokens, allowed, num_drawn, ids, tokens, chances))
        return self._proposal(batch, rows), [row.spelled for row in rows]

    def _proposal(self, batch: Batch, rows: Sequence["_Row"]) -> Proposal:
        width = max(len(row.tokens) for row in rows)
        padded = [[*row.tokens, *[0] * (width - len(row.tokens))] for row in rows]
        scores = [[*row.scores, *[0.0] * (width - len(row.scores))] for row in rows]
        drafts = upload(padded, batch.device, torch.long).view(len(rows), width)
        draft_probs = None
        if self.draft_probs is not None:
            num_drawn = upload([[row.num_drawn] for row in rows], batch.device)
            is_drawn = torch.arange(width, device=batch.device) < num_drawn
            point_masses = F.one_hot(drafts, batch.vocab_size).to(self.draft_probs.dtype)
            probs = torch.where(is_drawn[..., None], self.draft_probs[:, :width], point_masses)
            draft_probs = F.pad(probs, (0, 0, 0, 1))
        return scored_chain(
            torch.cat([batch.roots, drafts], dim=1),
            [len(row.tokens) for row in rows],
            upload(scores, batch.device, self.chances.dtype).view(len(rows), width),
            draft_probs,
        )


@dataclass(frozen=True)
class _Row:
    """The drafts of one row; the first `num_drawn` were drawn from the draft's distribution."""

    tokens: list[int]
    scores: list[float]
    num_drawn: int
    spelled: Spelled

    @staticmethod
    def of(
        translation: Translation,
        before: Sequence[int],
        budget: int,
        num_drawn: int,
        ids: Sequence[int],
        tokens: Sequence[int],
        chances: Sequence[float],
    ) -> "_Row":
        drawn = list(tokens[:num_drawn])
        rest = spell_drafts(
            translation,
            [*before[-16:], *drawn],
            ids[num_drawn:budget],
            chances[num_drawn:budget],
        )
        units: list[Unit] = [((token,), (id,)) for token, id in zip(drawn, ids, strict=False)]
        return _Row(
            tokens=[*drawn, *rest.tokens][:budget],
            scores=[*chances[:num_drawn], *rest.scores][:budget],
            num_drawn=num_drawn,
            spelled=Spelled(fed=ids, units=[*units, *rest.units]),
        )
