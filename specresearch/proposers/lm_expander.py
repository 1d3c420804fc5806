"""Draft trees grown by a draft LM over its own cache."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM
from specresearch.proposal import Topology
from specresearch.proposers.growth_graph import PlanLevel


@runtime_checkable
class DraftLM(Protocol):
    """A draft LM, and what its ids mean to the target."""

    draft: CausalLM

    def to_target(
        self, logits: Float[Tensor, "B M _"], vocab_size: int
    ) -> Float[Tensor, "B M V"]: ...

    def to_draft(self, token_ids: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]: ...


@dataclass(frozen=True)
class LMExpander:
    """Expands the nodes of a growing tree with a draft LM; a `TreeDrafter`."""

    proposer: DraftLM
    batch: Batch

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        draft = self.proposer.draft
        draft_ids = self.proposer.to_draft(token_ids)
        logits = draft.grow(self.batch.slots, draft_ids, topology, first)
        return self.proposer.to_target(logits, self.batch.vocab_size)


@dataclass(frozen=True)
class LMExpanderInGraph:
    """The same inside of a graph."""

    proposer: DraftLM
    vocab_size: int
    plan: PlanLevel

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        draft = self.proposer.draft
        draft_ids = self.proposer.to_draft(token_ids)
        (states,) = draft.states(draft_ids, *self.plan(topology, first))
        return self.proposer.to_target(draft.readout(states), self.vocab_size)
