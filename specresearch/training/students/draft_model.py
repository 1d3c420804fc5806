"""A draft LM in training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.head_writing import own_keys
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.pairing import check_pair
from specresearch.proposers import DraftModel, Proposer
from specresearch.training.lora import Adapter, Lora
from specresearch.training.students.base import (
    ADAPTER_FOLDER,
    HiddenStates,
    Student,
    StudentStep,
    TokenIds,
    save_model,
)


class DraftStudent(Student):
    """A draft LM with unpacked weights, or its adapters; all its steps are the same."""

    method = "draft_model"

    def __init__(
        self, draft: CausalLM, target: CausalLM, lora: Lora | None = None, seed: int = 0
    ) -> None:
        check_pair(target, draft)
        draft.unpack_weights()
        self.draft = draft
        self.vocab_size = target.vocab_size
        if lora is not None:
            self.adapter = Adapter(draft.model, lora, seed)
        self.module = draft.model
        self.decoding_models = (draft,)

    @property
    def trained(self) -> list[nn.Parameter]:
        return super().trained if self.adapter is None else self.adapter.parameters

    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        known_ids = token_ids.clamp(max=self.draft.vocab_size - 1)
        states = self.draft.forward_whole(known_ids, (FINAL_NORM,)).hidden[0]
        yield StudentStep(states, self._readout, shift=0)

    def _readout(self, states: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        logits = self.draft.readout(states)
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=float("-inf"))
        return logits[..., : self.vocab_size]

    def proposer(self, num_draft_tokens: int) -> Proposer:
        return DraftModel(self.draft, num_draft_tokens)

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """Write the merged weights, and the adapter alone to a folder beside them."""
        save_model(self.draft, folder, own_keys(self.method, provenance))
        if self.adapter is not None:
            self.adapter.save(Path(folder, ADAPTER_FOLDER))
