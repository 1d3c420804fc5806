"""The interface of a trainable drafter.

A student runs the modules and attention of decoding over whole sequences. Every drafting step has
one form, so losses and estimates need not know the method: row t predicts token t + shift + 1.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.proposers import Proposer
from specresearch.training.lora import Adapter

STEP_DECAY = 0.8
ADAPTER_FOLDER = "adapter"
BACKBONE = "backbone"  # of a student that trains the target as well

TokenIds = Int[Tensor, "B T"]
HiddenStates = Sequence[Float[Tensor, "B T _"]]


@dataclass(frozen=True)
class StudentStep:
    """One drafting step over whole sequences.

    Attributes:
        states: Row t predicts token t + shift + 1, and is compared with the target's row t + shift.
        readout: Maps states to logits over the target's vocabulary, or over `target_ids`.
        weight: Weight of the step's loss.
        regression: Predicted features and the target's features, row by row.
        first_row: First row with a meaning; earlier rows have no loss.
        name: Name in metrics; None uses the step's number.
    """

    states: Float[Tensor, "B P H"]
    readout: Callable[[Tensor], Tensor]
    shift: int
    weight: float = 1.0
    target_ids: Int[Tensor, " D"] | None = None
    regression: tuple[Float[Tensor, "B Q H"], Float[Tensor, "B Q H"]] | None = None
    first_row: int = 0
    name: str | None = None


class Student(ABC):
    """A drafter in training.

    Attributes:
        module: Holds the trained parameters.
        hidden_layers: Target layers it reads, in the adapter's numbering.
        samples: True if drafts are sampled whenever requests are; False if they are the argmax.
        max_drafts: Longest chain it can draft.
        token_weight: Weight of the objective.
        feature_weight: Weight of the smooth L1 distance to the target's features, for steps with a
            regression.
        trains_in_stages: True if the set of trained parameters changes during training.
        verifier: The trained copy of the target that decodes with the drafts; None uses the target.
        decoding_models: Its models with caches of their own.
        rate_scale: Current factor of the `custom_rates`.
        adapter: Trained in place of the weights it adapts.
    """

    method: str
    module: nn.Module
    hidden_layers: tuple[int, ...] = ()
    samples = True
    max_drafts: int | None = None
    token_weight = 1.0
    feature_weight = 0.0
    trains_in_stages = False
    verifier: CausalLM | None = None
    decoding_models: tuple[CausalLM, ...] = ()
    rate_scale = 1.0
    adapter: Adapter | None = None

    @property
    def target_ids(self) -> Int[Tensor, " D"] | None:
        """The target's ids of the tokens that every step drafts from; None for all."""
        return None

    @property
    def trained(self) -> list[nn.Parameter]:
        """The trained parameters of `module`."""
        return list(self.module.parameters())

    @property
    def custom_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Parameters with a learning rate of their own."""
        return []

    @property
    def extra_state(self) -> dict[str, Tensor]:
        """What a checkpoint needs besides the parameters."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the `extra_state` of a checkpoint."""

    def start_step(self, progress: float) -> None:
        """Prepare for an optimizer step; `progress` is the share of steps already done."""

    def merged(self) -> AbstractContextManager[None]:
        """Return a context in which adapters are merged into plain weights."""
        return nullcontext() if self.adapter is None else self.adapter.merged()

    @abstractmethod
    def steps(
        self, token_ids: TokenIds, hidden: HiddenStates, num_steps: int | None = None
    ) -> Iterator[StudentStep]:
        """Yield the steps of training, or the first `num_steps` of decoding.

        The last step stands for all that follow.
        """

    @abstractmethod
    def proposer(self, num_draft_tokens: int) -> Proposer:
        """Return a proposer of chains that uses the current weights."""

    @abstractmethod
    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """Write a checkpoint for the method's `from_pretrained`."""


def save_model(model: CausalLM, folder: str | Path, config_keys: Mapping[str, Any]) -> None:
    """Write a checkpoint for `CausalLM.from_pretrained`, with extra keys in its config."""
    model.model.config.update(dict(config_keys))
    model.model.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)


def copy_of(target: CausalLM, shares_weights: bool = False) -> CausalLM:
    """Return a copy of a target to be trained."""
    shared = {id(weight): weight for weight in target.model.parameters()} if shares_weights else {}
    model = copy.deepcopy(target.model, dict(shared))
    copied = CausalLM(
        model,
        target.tokenizer,
        max_len=target.max_len,
        attention=target.adapter.attention,
        prefill_chunk=target.prefill_chunk,
        pack_weights=False,
        name=target.name,
        self_test=False,
    )
    copied.unpack_weights()  # copies of packed layers are packed, too
    return copied
