"""Drafters as things that learn: which modules, which states of the target, and what each drafting step guesses.

A student runs the modules and the attention of decoding over whole sequences. Every step is stated in one form, so that losses
and estimates know no method: row t of a step guesses the token `shift` + 1 places after token t.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.head_fit import lm_head_of
from specresearch.models.head_writing import own_keys, save_eagle_head, save_medusa_heads
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.medusa import MedusaHeads
from specresearch.models.pairing import check_pair
from specresearch.proposers import DraftModel, Eagle, Eagle3, Medusa, Proposer
from specresearch.training.lora import Adapter, Lora

FADE = 0.8
ADAPTER = "adapter"


@dataclass(frozen=True)
class Step:
    """One drafting step over whole sequences.

    states: what its readout turns into logits; row t guesses token t + shift + 1, beside the target's row t + shift.
    readout: logits over the target's vocabulary, or over `target_ids`. weight: of its loss. regression: states beside the
    target's features that they should equal, row by row. first_row: the rows before it mean nothing, and carry no loss.
    name: in figures, in place of its number.
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
    """module: holds what is trained. hidden_layers: states of the target it reads, in the adapter's numbering.

    samples: whether it draws its drafts where the request does; otherwise they are the likeliest tokens at every temperature.
    max_drafts: the longest chain it can draft. token_weight, feature_weight: of the objective, and of the smooth L1 distance
    to the target's features where a step has such a regression. in_stages: whether what learns depends on the stage of training.
    verifier: the model that decodes with the drafts, where training changes the target itself; None: the target.
    decoders: models of its own that decode. own_share: how much of their own learning rates `own_rates` have at this step.
    """

    method: str
    module: nn.Module
    hidden_layers: tuple[int, ...] = ()
    samples = True
    max_drafts: int | None = None
    token_weight = 1.0
    feature_weight = 0.0
    in_stages = False
    verifier: CausalLM | None = None
    decoders: tuple[CausalLM, ...] = ()
    own_share = 1.0

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters of `module` that learn."""
        return list(self.module.parameters())

    @property
    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Parameters with another learning rate than the rest."""
        return []

    @property
    def choices(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold beside the parameters."""
        return {}

    def choose(self, choices: Mapping[str, Tensor]) -> None:
        """Take over the `choices` of a checkpoint."""

    def begin(self, done: float) -> None:
        """An optimiser step begins. done: the share of the steps that lie behind."""

    def plain(self) -> AbstractContextManager[None]:
        """The models without adapters, as they will be saved."""
        return nullcontext()

    @abstractmethod
    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        """The steps of training, or the first `num_steps` of decoding. The last one stands for all that follow."""

    @abstractmethod
    def proposer(self, num_draft_tokens: int) -> Proposer:
        """Drafts chains with the module as it is now."""

    @abstractmethod
    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """Write what `from_pretrained` of the method reads."""


class DraftStudent(Student):
    """A draft LM, whose weights are unpacked; every step is the same.

    lora: train adapters in place of all its weights, from random ones by `seed`.
    """

    method = "draft_model"

    def __init__(
        self, draft: CausalLM, target: CausalLM, lora: Lora | None = None, seed: int = 0
    ) -> None:
        check_pair(target, draft)
        draft.unpack_weights()
        self.draft, self.vocab_size = draft, target.vocab_size
        self.adapter = None if lora is None else Adapter(draft.model, lora, seed)
        self.module, self.decoders = draft.model, (draft,)

    @property
    def trained(self) -> list[nn.Parameter]:
        return super().trained if self.adapter is None else self.adapter.parameters

    def plain(self) -> AbstractContextManager[None]:
        return nullcontext() if self.adapter is None else self.adapter.merged()

    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        readable = token_ids.clamp(max=self.draft.vocab_size - 1)
        states = self.draft.forward_whole(readable, (FINAL_NORM,)).hidden[0]
        yield Step(states, self._readout, shift=0)

    def _readout(self, states: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        logits = self.draft.readout(states)
        surplus = logits.shape[-1] - self.vocab_size
        return (
            logits[..., : self.vocab_size]
            if surplus >= 0
            else F.pad(logits, (0, -surplus), value=float("-inf"))
        )

    def proposer(self, num_draft_tokens: int) -> Proposer:
        return DraftModel(self.draft, num_draft_tokens)

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        """An adapter is saved twice: in the weights, and beside them in a folder of its own."""
        save_model(self.draft, folder, own_keys(self.method, provenance))
        if self.adapter is not None:
            self.adapter.save(Path(folder, ADAPTER))


def save_model(model: CausalLM, folder: str | Path, keys: Mapping[str, Any]) -> None:
    """Write what `CausalLM.from_pretrained` reads. keys: for its config."""
    model.model.config.update(dict(keys))
    model.model.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)


class MedusaStudent(Student):
    """Medusa's heads (arXiv 2401.10774): step i is head i, weighted 0.8^i."""

    method = "medusa"
    hidden_layers = (FINAL_NORM,)
    samples = False

    def __init__(self, heads: MedusaHeads, target: CausalLM) -> None:
        heads.check_fit(target)
        self.heads, self.target = heads.to(device=target.device, dtype=target.dtype), target
        self.module, self.max_drafts = heads, len(heads)

    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        for i, head in enumerate(list(self.heads)[:num_steps]):
            layers = list(head.children())
            *blocks, last = (
                layers if self.heads.vocab_size is not None else (*layers, lm_head_of(self.target))
            )
            states = hidden[0]
            for block in blocks:
                states = block(states)
            yield Step(states, last, shift=1 + i, weight=FADE**i)

    def proposer(self, num_draft_tokens: int) -> Proposer:
        depth = min(num_draft_tokens, len(self.heads))
        return Medusa(self.heads, paths=[(0,) * length for length in range(1, depth + 1)])

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        save_medusa_heads(self.heads, folder, provenance)


class EagleStudent(Student):
    """An EAGLE head, unrolled over `num_steps` steps that feed it its own outputs, each weighted 0.8^i.

    EAGLE-1 (arXiv 2401.15077) is trained with one step and a regression to the target's features, EAGLE-3 (2503.01840) with
    seven and none, unless `feature_weight` asks for it. Raises ValueError for a regression where the head is not as wide as
    the target.
    """

    def __init__(
        self,
        model: EagleModel,
        num_steps: int | None = None,
        *,
        token_weight: float = 1.0,
        feature_weight: float = 0.0,
    ) -> None:
        self.model, format = model, model.head.format
        self.token_weight, self.feature_weight = token_weight, feature_weight
        self.num_steps = format.training_steps if num_steps is None else num_steps
        if self.num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        self.method = format.proposer
        self.module = model.head
        self.hidden_layers = model.captured_layers
        if feature_weight and self.hidden_layers != (FINAL_NORM,):
            width, target_width = (
                model.head.format.layer.hidden_size,
                lm_head_of(model.target).in_features,
            )
            if width != target_width:
                raise ValueError(
                    f"student.feature_weight={feature_weight}: the head is {width} wide and the target's features are "
                    f"{target_width} wide, so there is no distance between them; set it to 0"
                )
            self.hidden_layers += (FINAL_NORM,)

    @property
    def choices(self) -> dict[str, Tensor]:
        """The reduced vocabulary, which another corpus would choose otherwise."""
        return {} if self.model.target_ids is None else {"target_ids": self.model.target_ids}

    def choose(self, choices: Mapping[str, Tensor]) -> None:
        if "target_ids" in choices:
            self.model.target_ids = self.model.head.target_ids = choices["target_ids"].to(
                self.model.device
            )

    def steps(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden: Sequence[Float[Tensor, "B T _"]],
        num_steps: int | None = None,
    ) -> Iterator[Step]:
        captured, features = hidden[: len(self.model.captured_layers)], hidden[-1]
        for i, out in enumerate(
            self.model.unroll(token_ids, captured, num_steps or self.num_steps)
        ):
            regression = (
                (self.model.head.readable(out), features[:, 1:]) if self.feature_weight else None
            )
            yield Step(
                out, self.model.readout, 1, FADE**i, self.model.target_ids, regression, first_row=i
            )

    def proposer(self, num_draft_tokens: int) -> Proposer:
        kind = {"eagle": Eagle, "eagle3": Eagle3}[self.method]
        return kind(
            self.model.head,
            num_draft_tokens,
            tree="chain",
            layer_ids=self.model.captured_layers,
            id_convention="inputs",
        )

    def save(self, folder: str, provenance: dict[str, Any]) -> None:
        layers = self.model.captured_layers
        save_eagle_head(self.model.head, folder, provenance, captured_layers=layers)
