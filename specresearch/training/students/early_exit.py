"""A copy of the target that learns to exit early (LayerSkip, arXiv 2404.16710).

The target thus becomes another model. Its exits learn from the original target, which stays frozen,
and so does its last layer, whose own loss shows how far its outputs have moved. LayerSkip also
drops layers at random, which is left out here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specresearch.models import CausalLM
from specresearch.models.head_writing import own_keys
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.hf_model import HFModel
from specresearch.models.layer_view import Sublayers, layer_view, lists_of
from specresearch.models.loading import OWN
from specresearch.proposers import LayerSkip, Proposer
from specresearch.training.students.base import (
    BACKBONE,
    HiddenStates,
    Student,
    StudentStep,
    TokenIds,
    copy_of,
    save_model,
)


class EarlyExitStudent(Student):
    """The copy and a view of it that stops early; they share their weights.

    Args:
        skipped: What drafting leaves out.
        exit_weight: Weight of the exit's loss beside that of the last layer.
    """

    method = "layer_skip"

    def __init__(self, target: CausalLM, skipped: Sublayers, exit_weight: float = 1.0) -> None:
        self.skipped, self.exit_weight = skipped, exit_weight
        self.backbone = copy_of(target)
        self.exit = HFModel(
            layer_view(self.backbone, skipped),
            target.tokenizer,
            attention=target.adapter.attention,
            pack_weights=False,
            name=target.name,
        )
        self.module = self.backbone.model
        self.verifier = self.backbone
        self.decoding_models = (self.backbone,)

    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        states = self.exit.forward_whole(token_ids, (FINAL_NORM,)).hidden[0]
        yield StudentStep(states, self.exit.readout, shift=0, weight=self.exit_weight, name="exit")
        if num_steps is None:
            states = self.backbone.forward_whole(token_ids, (FINAL_NORM,)).hidden[0]
            yield StudentStep(states, self.backbone.readout, shift=0, name=BACKBONE)

    def proposer(self, num_draft_tokens: int) -> Proposer:
        return LayerSkip(
            skip_attention=sorted(self.skipped.attention),
            skip_mlp=sorted(self.skipped.mlp),
            num_draft_tokens=num_draft_tokens,
        )

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """Write the trained target, which names what it learnt to do without."""
        keys = own_keys(self.method, provenance | {"part": BACKBONE})
        keys[OWN] |= lists_of(self.skipped)
        save_model(self.backbone, Path(folder, BACKBONE), keys)
