"""Medusa-2 (arXiv 2401.10774, section 2.2.2): heads and target train together.

The target thus becomes another model. Heads and backbone learn from the original target, which
stays frozen: from its distributions (the paper's self-distillation, section 2.3.2), or from the
text under `objective=cross_entropy`. Heads that followed the changing backbone could agree with it
on easily predicted outputs. The backbone's own loss shows how far its outputs have moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specresearch.models import CausalLM
from specresearch.models.head_writing import own_keys
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.training.lora import Adapter, Lora
from specresearch.training.students.base import (
    ADAPTER_FOLDER,
    BACKBONE,
    HiddenStates,
    StudentStep,
    TokenIds,
    copy_of,
    save_model,
)
from specresearch.training.students.medusa import MedusaStudent


@dataclass(frozen=True)
class JointSettings:
    """Settings of Medusa-2.

    Attributes:
        warmup: Share of the steps in which the heads train alone. Over as many steps again, the
            weight of the heads' loss and the backbone's learning rate then rise from 0.
        head_weight: Final weight of the heads' loss.
        backbone_learning_rate: Final rate of the backbone, subject to the schedule.
        lora: Trains adapters of a backbone that shares the frozen target's memory.
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
    """Heads and the copy of the target that trains and decodes with them.

    The backbone is a step of its own, which predicts the next token.
    """

    trains_in_stages = True
    hidden_layers = ()

    def __init__(
        self, heads: MedusaHeads, target: CausalLM, settings: JointSettings, seed: int = 0
    ) -> None:
        self.settings = settings
        self.backbone = copy_of(target, shares_weights=settings.lora is not None)
        super().__init__(heads, self.backbone)
        self.verifier = self.backbone
        self.decoding_models = (self.backbone,)
        self.module = nn.ModuleDict({"heads": heads, BACKBONE: self.backbone.model})
        self._backbone_parameters = list(self.backbone.model.parameters())
        if settings.lora is not None:
            self.adapter = Adapter(self.backbone.model, settings.lora, seed)
            self._backbone_parameters = self.adapter.parameters
        self.start_step(0.0)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [*self.heads.parameters(), *self._backbone_parameters]

    @property
    def custom_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(self._backbone_parameters, self.settings.backbone_learning_rate)]

    def start_step(self, progress: float) -> None:
        warmup = self.settings.warmup
        self.is_joint = progress >= warmup
        self.rate_scale = 1.0
        if warmup:
            self.rate_scale = min(1.0, max(0.0, progress - warmup) / warmup)
        self.head_weight = self.rate_scale * self.settings.head_weight if self.is_joint else 1.0
        for parameter in self._backbone_parameters:
            parameter.requires_grad_(self.is_joint)

    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_joint):
            states = self.backbone.forward_whole(token_ids, (FINAL_NORM,)).hidden[0]
        for step in super().steps(token_ids, (states,), num_steps):
            yield replace(step, weight=step.weight * self.head_weight)
        if num_steps is None and self.is_joint:
            yield StudentStep(states, self.backbone.readout, shift=0, name=BACKBONE)

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """Write the backbone to a folder beside the heads, which name it as their target."""
        path = Path(folder, BACKBONE)
        save_model(self.backbone, path, own_keys(self.method, provenance | {"part": BACKBONE}))
        if self.adapter is not None:
            self.adapter.save(path / ADAPTER_FOLDER)
        self.heads.base_model = self.backbone.name = str(path)
        super().save(folder, provenance)
