"""A machine whose times are known, and a drafter whose acceptance is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import Batch, CausalLM, Proposal, Proposer, SamplingParams
from specresearch.calibration import Calibration
from specresearch.clock import ManualClock
from specresearch.proposers import Synthetic
from specresearch.proposers.draft_shape import DraftShape

MAX_LEN = 256
LONGEST = 10
SAMPLING = SamplingParams(temperature=0.0, max_new_tokens=64)
PROMPTS = [list(range(1, 2 + number)) for number in range(1, 12)]


@dataclass(frozen=True)
class Machine:
    """Seconds of a step.

    Attributes:
        base: Of verification, whatever is verified.
        node: Of every node.
        draft: Of every draft.
    """

    base: float = 1.0
    node: float = 0.0
    draft: float = 0.0

    def seconds(self, num_drafts: int) -> float:
        return self.base + self.node * (1 + num_drafts) + self.draft * num_drafts


class Chain(Proposer):
    """Drafts token 0 as often as it may, in no time."""

    def __init__(self, length: int) -> None:
        self.num_draft_tokens = length
        self.shapes = (DraftShape(length, "chain"),)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        width = 1 + max(budget)
        tokens = torch.zeros((len(batch), width), dtype=torch.long)
        tokens[:, 0] = batch.roots[:, 0]
        lengths = [allowed + 1 for allowed in budget]
        return Proposal.chain(tokens, torch.tensor(lengths), host_lengths=lengths)


class Timed(Synthetic):
    """Is accepted as set, and takes the machine's time to draft."""

    def __init__(self, machine: Machine, clock: ManualClock, acceptance: float) -> None:
        super().__init__(Chain(LONGEST), acceptance)
        self.machine, self.clock = machine, clock

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        self.clock.advance(self.machine.draft * max(budget))
        return super().propose(batch, budget)


def calibration_of(machine: Machine, acceptance: float, batch_size: int = 1) -> Calibration:
    """Return a calibration on the machine, which passes the time of every pass of the target."""
    clock = ManualClock()
    target = CausalLM(
        build("llama", seed=1, max_position_embeddings=MAX_LEN),
        letters_tokenizer(VOCAB),
        max_len=MAX_LEN,
    )
    forward = target.forward

    def timed(slots: Sequence[int], proposal: Proposal, **settings: Any) -> Any:
        clock.advance(machine.base + machine.node * proposal.topology.num_nodes)
        return forward(slots, proposal, **settings)

    target.forward = timed
    proposer = Timed(machine, clock, acceptance)
    return Calibration(target, proposer, PROMPTS, SAMPLING, batch_size=batch_size, clock=clock)
