"""How many drafts of a recorded request are accepted when steps begin elsewhere than they did.

Under a lossless rule the text is a sample of the target's distribution, however it was drafted. So
the recorded text is kept, and the question is which drafts would have matched it. If a draft at a
position depends on the tokens before it only, wherever the step began, this has an exact answer
from p and q of the recorded token y after the recorded ones before it:

- Rejection accepts a draft there with probability min(1, q(y) / p(y)), independently of all other
  positions. Proof: P(y was drafted and accepted) / P(y) = q min(1, p / q) / p. A draft LM's q is
  like that; so is a greedy draft, whose q is 1 or 0.
- Block verification accepts i + 1 drafts, given that it accepts i, with probability
  min(1, q / (P_i p)), and P_{i+1} is min(1, P_i p / q) from P_0 = 1: its residual is built so that,
  i drafts accepted, the next token is a sample of p again.
- A point mass is accepted where it is y, by every rule.

What is unknown is what would have been drafted behind the last draft of a step if all of it were
accepted. There q / p of another position is taken, at which the target was about as sure and the
draft before was accepted too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Drafted(NamedTuple):
    """What one step drafts for a request.

    Attributes:
        num: Drafts.
        depth: The longest path among them.
        accepted: Drafts that are accepted.
    """

    num: int
    depth: int
    accepted: int


class AcceptanceReplay(ABC):
    """One request decoded again, with steps that begin anywhere."""

    @abstractmethod
    def step(self, position: int, budget: int) -> Drafted:
        """Return what a step drafts that begins after `position` tokens of the output."""


class Blocks(AcceptanceReplay):
    """Block verification: whether a position accepts depends on where the run began."""

    def __init__(self, odds: Float[np.ndarray, " E"], uniforms: Float[np.ndarray, " E"]) -> None:
        self._odds: list[float] = odds.tolist()
        self._uniforms: list[float] = uniforms.tolist()

    def step(self, position: int, budget: int) -> Drafted:
        bound = 1.0
        accepted = 0
        for i in range(position, min(position + budget, len(self._odds))):
            odds = self._odds[i]
            if self._uniforms[i] * bound >= odds:
                break
            bound = block_bound(bound, odds)
            accepted += 1
        return Drafted(budget, budget, accepted)


class Chains(AcceptanceReplay):
    """Chains that are known at every position: how far they match the text, and their length.

    Args:
        num_accepted: How many drafts would be accepted if enough were made.
        lengths: How many drafts are made; None if as many as are asked for.
    """

    def __init__(self, num_accepted: Sequence[int], lengths: Sequence[int] | None = None) -> None:
        self._num_accepted = num_accepted
        self._lengths = lengths

    def step(self, position: int, budget: int) -> Drafted:
        num = budget if self._lengths is None else min(budget, self._lengths[position])
        return Drafted(num, num, min(num, self._num_accepted[position]))


class Trees(AcceptanceReplay):
    """The recorded trees, whole or not at all.

    A tree that begins inside a recorded path has the rest of that path.
    """

    def __init__(
        self, num_nodes: Sequence[int], depths: Sequence[int], accepts: Bool[np.ndarray, " E"]
    ) -> None:
        self._num_nodes = num_nodes
        self._depths = depths
        self._num_accepted = run_lengths(accepts)

    def step(self, position: int, budget: int) -> Drafted:
        num, depth = self._num_nodes[position], self._depths[position]
        if not budget:
            return Drafted(0, 0, 0)
        if budget < num:
            raise ValueError(
                f"the controller asks for {budget} nodes of a tree of which {num} were recorded, "
                "and which of them a smaller tree would keep is not known; use controller=fixed, "
                "or one that drafts all or nothing, or record smaller trees"
            )
        return Drafted(num, depth, min(depth, self._num_accepted[position]))


def run_lengths(accepts: Bool[np.ndarray, " E"]) -> list[int]:
    """Return, for each position, how many positions from there on accept in a row."""
    position = np.arange(len(accepts))
    rejecting = np.where(accepts, len(accepts), position)
    return (np.minimum.accumulate(rejecting[::-1])[::-1] - position).tolist()


def block_bound(bound: float, odds: float) -> float:
    """Return P_{i+1} of block verification, from P_i and q / p of the draft between."""
    return 1.0 if odds <= bound else bound / odds
