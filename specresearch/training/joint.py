"""Medusa-2 (arXiv 2401.10774, section 2.2.2): heads and the target itself learn together, which makes it another target.

Both learn from the target as it was, which stays frozen: from its distributions (the paper's self-distillation, section 2.3.2),
or from the text under `objective=cross_entropy`. Heads that followed the backbone as it changes could agree with it on being easy
to guess. And so the backbone's own loss says at every step how far its outputs have moved.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.head_writing import own_keys
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.training.lora import Adapter, Lora
from specresearch.training.students import ADAPTER, MedusaStudent, Step, save_model

BACKBONE = "backbone"


@dataclass(frozen=True)
class Joint:
    """warmup: share of the steps in which the heads learn alone. Then the backbone learns too, and over as many steps again the
    weight of the heads' loss rises from 0 to head_weight, and with it the backbone's learning rate to what the schedule makes of
    backbone_learning_rate. lora: train adapters of the backbone, which then shares the frozen target's memory.

    Raises ValueError for settings that cannot be.
    """

    warmup: float = 0.25
    head_weight: float = 0.2
    backbone_learning_rate: float = 1e-4
    lora: Lora | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise ValueError(f"student.joint.warmup={self.warmup} must lie in [0, 1)")
        for name in ("head_weight", "backbone_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"student.joint.{name}={getattr(self, name)} must be above 0")


class JointMedusaStudent(MedusaStudent):
    """Heads on a copy of the target that learns with them, and that decodes with them.

    seed: of random adapters. The backbone is a step of its own: it guesses the next token.
    """

    in_stages = True
    hidden_layers = ()

    def __init__(self, heads: MedusaHeads, target: CausalLM, joint: Joint, seed: int = 0) -> None:
        self.backbone = _copy(target, shares_weights=joint.lora is not None)
        super().__init__(heads, self.backbone)
        self.joint = joint
        self.adapter = (
            None if joint.lora is None else Adapter(self.backbone.model, joint.lora, seed)
        )
        self.verifier, self.decoders = self.backbone, (self.backbone,)
        self.module = nn.ModuleDict({"heads": heads, BACKBONE: self.backbone.model})
        self._learning = (
            list(self.backbone.model.parameters())
            if self.adapter is None
            else self.adapter.parameters
        )
        self.begin(0.0)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [*self.heads.parameters(), *self._learning]

    @property
    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(self._learning, self.joint.backbone_learning_rate)]

    def begin(self, done: float) -> None:
        warmup = self.joint.warmup
        self.is_joint = done >= warmup
        self.own_share = min(1.0, max(0.0, done - warmup) / warmup) if warmup else 1.0
        self.head_weight = self.own_share * self.joint.head_weight if self.is_joint else 1.0
        for parameter in self._learning:
            parameter.requires_grad_(self.is_joint)

    def plain(self) -> AbstractContextManager[None]:
        return nullcontext() if self.adapter is None else self.adapter.merged()

    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_joint):
            states = self.backbone.forward_whole(token_ids, (FINAL_NORM,)).hidden[0]
        for step in super().steps(token_ids, (states,), num_steps):
            yield replace(step, weight=step.weight * self.head_weight)
        if num_steps is None and self.is_joint:
            yield Step(states, self.backbone.readout, shift=0, name=BACKBONE)

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """The backbone is a target in a folder beside the heads, and they name it as the one they belong to."""
        place = Path(folder, BACKBONE)
        save_model(self.backbone, place, own_keys(self.method, provenance | {"part": BACKBONE}))
        if self.adapter is not None:
            self.adapter.save(place / ADAPTER)
        self.heads.base_model = self.backbone.name = str(place)
        super().save(folder, provenance)


def _copy(target: CausalLM, shares_weights: bool) -> CausalLM:
    shared = {id(weight): weight for weight in target.model.parameters()} if shares_weights else {}
    model, adapter = copy.deepcopy(target.model, dict(shared)), target.adapter
    attention = "slot" if adapter.uses_slot_attention else str(model.config._attn_implementation)
    copied = CausalLM(
        model,
        target.tokenizer,
        max_len=target.max_len,
        attention="flash" if adapter.flash else attention,
        prefill_chunk=target.prefill_chunk,
        pack_weights=False,
        name=target.name,
        self_test=False,
    )
    copied.unpack_weights()  # the target's own layers were packed, and so are their copies
    return copied
