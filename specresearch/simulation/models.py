"""Causal LMs without weights: slots and lengths are real, and passes only take time."""

from collections.abc import Callable, Sequence

import torch

from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.kv_cache import SlotCache
from specresearch.models.slots import Slots
from specresearch.proposal import Proposal, Verdict
from specresearch.simulation.machine import Machine

TOKEN, END = 0, 1  # the vocabulary: any token, and one that ends an output
VOCAB_SIZE = 2


def known_lengths(proposal: Proposal) -> Sequence[int]:
    """Return the nodes of each row, root included."""
    if proposal.host_lengths is None:
        return proposal.lengths.tolist()
    return proposal.host_lengths


class SimulatedModel(CausalLM):
    """A causal LM that computes nothing.

    It is a `CausalLM` so that the engine and `DraftModel` work with it unchanged, and as a draft LM
    it only keeps account of what its cache holds.

    Args:
        spend_prefill: Spends the time in which so many tokens are prefilled.
    """

    def __init__(self, spend_prefill: Callable[[int], None], max_len: int = 0) -> None:
        Slots.__init__(self, 0)
        self._spend_prefill = spend_prefill
        self.max_len = max_len
        self.prefill_chunk = 1024  # as of a `CausalLM` by default
        self.tokenizer = None
        self.name = "simulated"
        self._compiled = None
        self.allocate(0)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset()

    def allocate(self, num_slots: int, *num_nodes: int, max_len: int | None = None) -> None:
        """Make `num_slots` slots, all free."""
        self._use_cache(SlotCache(num_slots, 0, self.device))

    def extend(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        want_logits: bool = True,
        hidden_layers: Sequence[int] = (),
    ) -> ModelOutput:
        """Append committed tokens, ragged. There are no logits to return."""
        num_tokens = 0
        for slot, new in zip(slots, tokens, strict=True):
            self.lengths[slot] += len(new)
            num_tokens += len(new)
        self._spend_prefill(num_tokens)
        return ModelOutput(torch.empty((len(slots), 0, VOCAB_SIZE)))

    def commit(self, slots: Sequence[int], verdict: Verdict) -> None:
        """Keep the root and the accepted drafts, of which there is nothing to move."""
        for slot, num_accepted in zip(slots, verdict.num_accepted.tolist(), strict=True):
            self.lengths[slot] += 1 + num_accepted


class SimulatedTarget(SimulatedModel):
    """The target of a simulation. `ReplayingRule` knows what it accepts, so all logits are 0."""

    def __init__(self, machine: Machine, max_len: int) -> None:
        super().__init__(machine.prefill, max_len)
        self.machine = machine

    def forward(
        self, slots: Sequence[int], proposal: Proposal, *, hidden_layers: Sequence[int] = ()
    ) -> ModelOutput:
        """Spend the time of a pass over every node of every row."""
        lengths = known_lengths(proposal)
        contexts = [self.lengths[slot] for slot in slots]
        self.machine.verify(contexts, lengths, proposal.topology.max_depth)
        return ModelOutput(torch.zeros((*proposal.token_ids.shape, VOCAB_SIZE)))
