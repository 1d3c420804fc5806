"""Drafts of another tokenizer are refuted if the declared row is not what they were drawn from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float, Int
from torch import Tensor
from toy_methods import certify_it, target

from specresearch.batch import Batch
from specresearch.certification.certificate import CERTIFIED, REFUTED
from specresearch.engine import checks
from specresearch.models.translation import Translation
from specresearch.proposers import DraftModelOtherTokenizer

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

Choose = Callable[..., tuple[Int[Tensor, "B 1"], Float[Tensor, "B 1 V"]]]
choose: Choose = DraftModelOtherTokenizer._choose


class Remembering(DraftModelOtherTokenizer):
    """Keeps the draft's log-probabilities of its own ids, from which a row was made."""

    def to_target(self, logits: Tensor, vocab_size: int) -> Tensor:
        self.log_q = logits.log_softmax(-1)
        return super().to_target(logits, vocab_size)


def not_renormalised(
    self: Remembering, batch: Batch, logits: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """Declare the draft's own probabilities of common tokens, which do not sum to 1."""
    assert self.translation is not None
    token, q = choose(self, batch, logits, *rest)
    return token, q * self.translation.common_share(self.log_q)[:, :, None]


def of_one_id(self: Remembering, batch: Batch, logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Declare the probability of one id, where all ids with a token's bytes were drawn."""
    assert self.translation is not None
    token, _ = choose(self, batch, logits, *rest)
    draft = self.translation.draft
    others = [id for ids in draft.ids_of.values() for id in ids[1:]]
    pieces = [None if id in others else piece for id, piece in enumerate(draft.pieces)]
    of_first = Translation(self.translation.target, replace(draft, pieces=pieces), logits.device)
    return token, choose(self, batch, of_first.to_target(self.log_q), *rest)[1]


@pytest.mark.parametrize("fault", [None, not_renormalised, of_one_id])
def test_a_row_other_than_the_drawn_one_is_refuted(
    fault: Choose | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault is not None:
        monkeypatch.setattr(checks, "FOREIGN_CHECKS", 0)
        monkeypatch.setattr(Remembering, "_choose", fault)
    certificate = certify_it(tmp_path, Remembering.toy(target(), 7, num_draft_tokens=2))
    assert certificate.verdict == (CERTIFIED if fault is None else REFUTED)
