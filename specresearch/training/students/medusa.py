"""Medusa heads in training."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Int
from torch import Tensor

from specresearch.models import CausalLM
from specresearch.models.head_fit import lm_head_of
from specresearch.models.head_writing import save_medusa_heads
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.models.packed import unpack_linear_layers
from specresearch.proposers import Medusa, Proposer
from specresearch.training.students.base import (
    STEP_DECAY,
    HiddenStates,
    Student,
    StudentStep,
    TokenIds,
)


class MedusaStudent(Student):
    """Medusa's heads (arXiv 2401.10774); step i is head i, with weight 0.8^i."""

    method = "medusa"
    hidden_layers = (FINAL_NORM,)
    samples = False

    def __init__(self, heads: MedusaHeads, target: CausalLM) -> None:
        heads.check_fit(target)
        unpack_linear_layers(heads)
        self.heads = heads.to(device=target.device, dtype=target.dtype)
        self.target = target
        self.module = heads
        self.max_drafts = len(heads)

    @property
    def target_ids(self) -> Int[Tensor, " D"] | None:
        return self.heads.target_ids

    @property
    def extra_state(self) -> dict[str, Tensor]:
        """The reduced vocabulary, since another corpus would select another one."""
        return {} if self.target_ids is None else {"target_ids": self.target_ids}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if "target_ids" in state:
            self.heads.token_map = state["target_ids"].to(self.target.device)

    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        for i, head in enumerate(list(self.heads)[:num_steps]):
            layers = list(head.children())
            if self.heads.vocab_size is None:
                layers.append(lm_head_of(self.target))
            *blocks, lm_head = layers
            states = hidden[0]
            for block in blocks:
                states = block(states)
            yield StudentStep(
                states,
                lm_head,
                shift=1 + i,
                weight=STEP_DECAY**i,
                target_ids=self.target_ids,
            )

    def proposer(self, num_draft_tokens: int) -> Proposer:
        depth = min(num_draft_tokens, len(self.heads))
        return Medusa(self.heads, paths=[(0,) * length for length in range(1, depth + 1)])

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        save_medusa_heads(self.heads, folder, provenance)
