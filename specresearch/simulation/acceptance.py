"""How many drafts of a recorded request are accepted when steps begin elsewhere than they did.

Under a lossless rule the text is a sample of the target's distribution, however it was drafted; so the recorded text is kept and
the question is which drafts would have met it. For a drafter whose opinion of a position depends on the tokens before it only,
wherever the step began, this has an exact answer from p and q of the recorded token y after the recorded ones before it:

- rejection accepts a draft there with probability min(1, q(y) / p(y)), independently of all other positions. Proof: P(y was
  drafted and kept) / P(y) = q min(1, p / q) / p. A draft LM's q is like that; so is a greedy draft, where it is 1 or 0.
- block verification keeps i + 1 drafts, given that it keeps i, with probability min(1, q / (P_i p)), and P_{i+1} is
  min(1, P_i p / q) from P_0 = 1: its residual is built so that, i drafts kept, the next token is a sample of p again.
- a point mass is accepted where it is y, by every rule.

What is not known is what would have been drafted where nothing was: behind the last draft of a step, when all were accepted.
There q / p of another position is taken, one where the target was about as sure and the draft before was accepted too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from specresearch.recording.recording import RecordedRequest

NUM_NEIGHBOURS = 50  # positions among which one stands in for another


@dataclass(frozen=True, eq=False)
class Positions:
    """What is known of drafts at each of the E tokens of a request's output.

    asked: a draft was judged here. accepted: and kept. odds: q / p of the token, infinite for a point mass that met it, NaN where
    it is not known. threshold: the uniform draw below which the recorded rule kept the draft. logprobs: the target's.
    score: what the drafter gave the draft. expected: as the rule says it, NaN where it does not.
    """

    asked: Bool[np.ndarray, " E"]
    accepted: Bool[np.ndarray, " E"]
    odds: Float[np.ndarray, " E"]
    threshold: Float[np.ndarray, " E"]
    logprobs: Float[np.ndarray, " E"]
    score: Float[np.ndarray, " E"]
    expected: Float[np.ndarray, " E"]

    @staticmethod
    def of(request: RecordedRequest, *, by_outcome: bool, is_block: bool) -> "Positions":
        """by_outcome: what happened is all that is known, as for a lossy rule. is_block: the recorded rule judged blocks."""
        num = request.num_tokens
        asked, accepted = np.zeros((2, num), dtype=bool)
        odds, score, expected, threshold = np.full((4, num), np.nan)
        for step in request.steps:
            num_judged = min(step.num_new, step.depth)
            here = slice(step.position, step.position + num_judged)
            asked[here] = True
            accepted[here] = np.arange(num_judged) < step.num_accepted
            point_mass = by_outcome or len(step.q) == 0
            with np.errstate(divide="ignore"):
                ratio = request.q[here].astype(float) / request.p[here]
            odds[here] = np.where(accepted[here], np.inf, 0.0) if point_mass else ratio
            threshold[here] = _thresholds(odds[here]) if is_block else np.minimum(odds[here], 1.0)
            if len(step.scores):
                score[here] = step.scores[:num_judged]
            if len(step.expected):
                expected[here] = step.expected[:num_judged]
        return Positions(
            asked, accepted, odds, threshold, request.logprobs.astype(float), score, expected
        )


def _thresholds(odds: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
    """Of block verification, for a run that begins here."""
    kept, thresholds = 1.0, []
    for ratio in odds.tolist():
        thresholds.append(min(1.0, ratio / kept) if kept else float(ratio > 0))
        kept = _kept(kept, ratio)
    return np.array(thresholds)


def _kept(kept: float, odds: float) -> float:
    """P after a draft with q / p = odds."""
    return 1.0 if odds <= kept else kept / odds


class StandIns:
    """Positions that stand in for those at which nothing was drafted."""

    def __init__(self, known: Sequence[Positions]) -> None:
        follows = [np.concatenate([[False], (p.asked & p.accepted)[:-1]]) for p in known]
        for wanted in (
            [p.asked & after for p, after in zip(known, follows, strict=True)],
            [p.asked for p in known],
        ):
            found = {
                name: _joined(known, name, wanted)
                for name in ("logprobs", "odds", "score", "expected")
            }
            if len(found["odds"]) >= NUM_NEIGHBOURS:
                break
        order = np.argsort(found["logprobs"], kind="stable")
        self._found = {name: values[order] for name, values in found.items()}

    def fill(self, positions: Positions, rng: np.random.Generator) -> Positions:
        """With odds, score and expectation everywhere."""
        missing, num = ~positions.asked, len(self._found["odds"])
        if not missing.any() or not num:
            return replace(positions, odds=np.where(missing, 0.0, positions.odds))
        place = np.searchsorted(self._found["logprobs"], positions.logprobs[missing])
        first = np.clip(place - NUM_NEIGHBOURS // 2, 0, max(num - NUM_NEIGHBOURS, 0))
        chosen = first + rng.integers(0, min(NUM_NEIGHBOURS, num), len(first))
        filled = {}
        for name in ("odds", "score", "expected"):
            filled[name] = getattr(positions, name).copy()
            filled[name][missing] = self._found[name][chosen]
        return replace(positions, **filled)


def _joined(
    known: Sequence[Positions], name: str, wanted: Sequence[Bool[np.ndarray, " _"]]
) -> Float[np.ndarray, " P"]:
    parts = [getattr(positions, name)[mask] for positions, mask in zip(known, wanted, strict=True)]
    return np.concatenate([np.empty(0), *parts])


class Drafted(NamedTuple):
    """Drafts made, the longest path among them, and drafts accepted."""

    num: int
    depth: int
    accepted: int


class Replay(ABC):
    """One request decoded again, with steps that begin wherever they do."""

    @abstractmethod
    def step(self, position: int, budget: int) -> Drafted:
        """Of a step that begins after `position` tokens of the output with up to `budget` drafts."""


class Coins(Replay):
    """Every position has made up its mind: a run ends at the first that refuses. The drafter makes what it is asked for."""

    def __init__(self, accepts: Bool[np.ndarray, " E"]) -> None:
        self._end = run_ends(accepts)

    def step(self, position: int, budget: int) -> Drafted:
        return Drafted(budget, budget, min(budget, self._end[position] - position))


class Blocks(Replay):
    """Whether a position accepts depends on where the run began."""

    def __init__(self, odds: Float[np.ndarray, " E"], uniforms: Float[np.ndarray, " E"]) -> None:
        self._odds: list[float] = odds.tolist()
        self._uniforms: list[float] = uniforms.tolist()

    def step(self, position: int, budget: int) -> Drafted:
        kept, accepted = 1.0, 0
        for i in range(position, min(position + budget, len(self._odds))):
            odds = self._odds[i]
            if self._uniforms[i] * kept >= odds:
                break
            kept, accepted = _kept(kept, odds), accepted + 1
        return Drafted(budget, budget, accepted)


class Table(Replay):
    """Chains that are known for every position: how long they are there, and how far they meet the text."""

    def __init__(self, lengths: Sequence[int], met: Sequence[int]) -> None:
        self._lengths, self._met = lengths, met

    def step(self, position: int, budget: int) -> Drafted:
        num = min(budget, self._lengths[position])
        return Drafted(num, num, min(num, self._met[position]))


class Trees(Replay):
    """The recorded trees, whole or not at all; one that begins inside a recorded path has the rest of its path."""

    def __init__(
        self, num_nodes: Sequence[int], depth: Sequence[int], accepts: Bool[np.ndarray, " E"]
    ) -> None:
        self._num_nodes, self._depth, self._end = num_nodes, depth, run_ends(accepts)

    def step(self, position: int, budget: int) -> Drafted:
        num, depth = self._num_nodes[position], self._depth[position]
        if not budget:
            return Drafted(0, 0, 0)
        if budget < num:
            raise ValueError(
                f"the controller asks for {budget} nodes of a tree of which {num} were recorded, and which of them a smaller "
                "tree would keep is not known; use controller=fixed, or one that drafts all or nothing, or record smaller trees"
            )
        return Drafted(num, depth, min(depth, self._end[position] - position))


def run_ends(accepts: Bool[np.ndarray, " E"]) -> list[int]:
    """For every position the first from there on that refuses, E if none does."""
    num = len(accepts)
    refusing = np.where(accepts, num, np.arange(num))
    return np.minimum.accumulate(refusing[::-1])[::-1].tolist()
