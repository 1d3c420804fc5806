"""An EAGLE head in training."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Int
from torch import Tensor

from specresearch.models.eagle import EagleModel
from specresearch.models.head_fit import lm_head_of
from specresearch.models.head_writing import save_eagle_head
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.joint_projections import split_projections
from specresearch.models.packed import unpack_linear_layers
from specresearch.proposers import Eagle, Eagle3, Proposer
from specresearch.training.students.base import (
    STEP_DECAY,
    HiddenStates,
    Student,
    StudentStep,
    TokenIds,
)


class EagleStudent(Student):
    """An EAGLE head unrolled over its own outputs; step i has weight 0.8^i.

    EAGLE-1 (arXiv 2401.15077) trains with one step and a regression to the target's features,
    EAGLE-3 (arXiv 2503.01840) with seven steps and none, unless `feature_weight` is set.
    """

    def __init__(
        self,
        model: EagleModel,
        num_steps: int | None = None,
        *,
        token_weight: float = 1.0,
        feature_weight: float = 0.0,
    ) -> None:
        unpack_linear_layers(model.head)
        split_projections(model.head)
        self.model = model
        format = model.head.format
        self.token_weight = token_weight
        self.feature_weight = feature_weight
        if num_steps is None:
            num_steps = format.training_steps
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        self.num_steps = num_steps
        self.method = format.proposer
        self.module = model.head
        self.hidden_layers = model.captured_layers
        if feature_weight and self.hidden_layers != (FINAL_NORM,):
            width = format.layer.hidden_size
            target_width = lm_head_of(model.target).in_features
            if width != target_width:
                raise ValueError(
                    f"student.feature_weight={feature_weight}: the head is {width} wide and the "
                    f"target's features are {target_width} wide, so there is no distance between "
                    "them; set it to 0"
                )
            self.hidden_layers += (FINAL_NORM,)

    @property
    def target_ids(self) -> Int[Tensor, " D"] | None:
        return self.model.target_ids

    @property
    def extra_state(self) -> dict[str, Tensor]:
        """The reduced vocabulary, since another corpus would select another one."""
        return {} if self.target_ids is None else {"target_ids": self.target_ids}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if "target_ids" in state:
            target_ids = state["target_ids"].to(self.model.device)
            self.model.target_ids = self.model.head.target_ids = target_ids

    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        captured = hidden[: len(self.model.captured_layers)]
        outputs = self.model.unroll(token_ids, captured, num_steps or self.num_steps)
        for i, states in enumerate(outputs):
            regression = None
            if self.feature_weight:
                regression = (self.model.head.readable(states), hidden[-1][:, 1:])
            yield StudentStep(
                states=states,
                readout=self.model.readout,
                shift=1,
                weight=STEP_DECAY**i,
                target_ids=self.target_ids,
                regression=regression,
                first_row=i,
            )

    def proposer(self, num_draft_tokens: int) -> Proposer:
        proposer_class = {"eagle": Eagle, "eagle3": Eagle3}[self.method]
        return proposer_class(
            self.model.head,
            num_draft_tokens,
            tree="chain",
            layer_ids=self.model.captured_layers,
            id_convention="inputs",
        )

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        layers = self.model.captured_layers
        save_eagle_head(self.model.head, folder, provenance, captured_layers=layers)
