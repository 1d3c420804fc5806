"""Which recorded requests can be replayed, under which rules, and what that assumes."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hydra.utils import get_class, instantiate

from specresearch.acceptance import RULES
from specresearch.proposal import DraftKind
from specresearch.proposers import Proposer
from specresearch.recording.recording import RecordedRequest, Recording
from specresearch.simulation.acceptance import (
    AcceptanceReplay,
    Blocks,
    Chains,
    Trees,
    run_lengths,
)
from specresearch.simulation.positions import Estimates, Positions, StandIns
from specresearch.simulation.redrafting import is_redraftable, recorded_drafts, redraft

EXACT_IF_GREEDY = ("typical",)  # rules that are lossy at other temperatures only


@dataclass(frozen=True)
class Drafting:
    """One side of a recording, to be replayed under another rule or draft length.

    Attributes:
        side: Side of the recording.
        rule: Name of the acceptance rule.
        num_draft_tokens: The most drafts in a step; 0 for plain decoding.

    Raises:
        ValueError: If only the model knows what would happen.
    """

    recording: Recording
    side: str
    rule: str
    num_draft_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(
                f"{self.recording.path} holds no finished request of side {self.side!r}; record "
                "the run again to its end, or use another side"
            )
        if self.rule not in RULES:
            raise ValueError(f"acceptance={self.rule} is not known; use one of {', '.join(RULES)}")
        self._check_rule()
        self._check_drafts()

    def _check_rule(self) -> None:
        header = self.recording.header
        is_recorded = self.rule == header.acceptance
        temperature = max(request.sampling.temperature for request in self.requests)
        rule = RULES[self.rule]
        is_exact = rule.lossless or (self.rule in EXACT_IF_GREEDY and temperature == 0)
        if not (is_recorded or is_exact):
            raise ValueError(
                f"acceptance={self.rule} moves the output to another text than the recorded one, "
                "and only the model knows how that would go on; measure it with specresearch.run"
            )
        if not (is_recorded or header.lossless):
            raise ValueError(
                f"the recording was made with acceptance={header.acceptance}, whose text is not a "
                "sample of the target's distribution, so that nothing follows for "
                f"acceptance={self.rule}; record with acceptance=rejection"
            )
        refusal = rule().refuses(self.kind)
        if refusal:
            raise ValueError(f"acceptance={self.rule} cannot judge the recorded drafts: {refusal}")
        if self.rule == "greedy" and temperature > 0:
            raise ValueError(
                "acceptance=greedy is exact for temperature 0 only, and the recording has "
                f"temperature={temperature}; use acceptance=rejection"
            )

    def _check_drafts(self) -> None:
        header = self.recording.header
        if self.can_redraft or not self.num_draft_tokens:
            return
        if header.fixed.get(self.side) is None:
            raise ValueError(
                f"side {self.side!r} was recorded under a controller that chose how much to draft, "
                "so that it is not known what the proposer would have drafted otherwise; record "
                "with controller=fixed"
            )
        if self.kind.trees and self.num_draft_tokens != header.num_draft_tokens:
            raise ValueError(
                f"num_draft_tokens={self.num_draft_tokens}: the recording has trees of "
                f"{header.num_draft_tokens} nodes, and what others would hold is not known; record "
                "with that number"
            )
        if self.num_draft_tokens > header.num_draft_tokens:
            raise ValueError(
                f"num_draft_tokens={self.num_draft_tokens}: drafts of at most "
                f"{header.num_draft_tokens} tokens were recorded, and what comes behind them is "
                f"not known; use 1 to {header.num_draft_tokens}, or record longer drafts"
            )

    @property
    def kind(self) -> DraftKind:
        return DraftKind(**self.recording.header.kind)

    @cached_property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """The finished requests of the side."""
        return self.recording.requests(self.side)

    @cached_property
    def can_redraft(self) -> bool:
        """Whether the proposer reads the request's own tokens only, and can draft again."""
        settings = self.recording.header.config.get("proposer")
        if not settings or self.kind.trees or {"draft", "proposers"} & settings.keys():
            return False
        is_candidate = is_redraftable(get_class(settings["_target_"]))
        return is_candidate and self._proposer.memory != "warm"

    @property
    def prefills_lazily(self) -> bool:
        """Whether the proposer prefills a request on its first draft."""
        return bool(self.recording.steps["num_lazy_prefill_tokens"].any())

    @cached_property
    def always_drafts_all(self) -> bool:
        """Whether every recorded step drafted as much as it was allowed to."""
        most = self.recording.header.fixed[self.side]
        max_len = self.recording.header.target["max_len"]
        assert most is not None
        for request in self.requests:
            requested = request.num_draft_tokens
            limit = most if requested is None else requested
            for step in request.steps:
                if len(step.draft_ids) != min(limit, _room(request, step.position, max_len)):
                    return False
        return True

    @property
    def assumption(self) -> str:
        """What the numbers of accepted drafts rest on."""
        if not self.num_draft_tokens:
            return "nothing is drafted"
        if self.can_redraft:
            return "drafts are made again from the recorded text by the proposer itself; exact"
        if self.kind.trees:
            return "trees as recorded; one that begins inside a recorded path has its rest"
        is_missing = np.concatenate([~positions.is_judged for positions in self._known])
        missing = (
            f"{np.mean(is_missing):.1%} of positions have no recorded draft and take that of a "
            "similar position"
        )
        if self.always_drafts_all:
            return f"a draft does not depend on where its step began; {missing}"
        return f"a draft that begins inside a recorded one is the rest of that one; {missing}"

    def replay(self, number: int, copy: int = 0) -> AcceptanceReplay:
        """Return the replay of the request of a number.

        Args:
            copy: 0 repeats what the recorded rule drew; others draw anew.
        """
        request = self.requests[number]
        if not self.num_draft_tokens:
            return Chains([0] * request.num_tokens, [0] * request.num_tokens)
        if self.can_redraft:
            return self._redrafted(number)
        lengths, num_nodes = recorded_drafts(request)
        known = self._known[number]
        if self.kind.trees:
            is_accepted = known.is_judged & known.is_accepted
            return Trees(num_nodes.tolist(), lengths.tolist(), is_accepted)
        odds = self.positions[number].odds
        rng = np.random.default_rng([self.seed, 2, number, copy])
        uniforms = rng.random(request.num_tokens)
        if copy == 0:
            uniforms = known.as_recorded(uniforms)
        accepts = uniforms < odds
        if not self.always_drafts_all:
            return Chains(run_lengths(accepts), lengths.tolist())
        if self.rule == "block" and not request.sampling.is_greedy:
            return Blocks(odds, uniforms)
        return Chains(run_lengths(accepts))

    def estimates(self, number: int) -> Estimates:
        """Return scores and expected acceptance at each position, as far as they are known."""
        if self.can_redraft or self.kind.trees or not self.num_draft_tokens:
            return Estimates()
        positions = self.positions[number]
        return Estimates(_known_or_empty(positions.scores), _known_or_empty(positions.expected))

    @cached_property
    def positions(self) -> list[Positions]:
        """The positions of every request, with stand-ins from its own category."""
        rng = np.random.default_rng([self.seed, 1])
        categories = [request.category for request in self.requests]
        known: dict[str, list[Positions]] = defaultdict(list)
        for positions, category in zip(self._known, categories, strict=True):
            known[category].append(positions)
        stand_ins = {category: StandIns(of_category) for category, of_category in known.items()}
        filled = []
        for positions, category in zip(self._known, categories, strict=True):
            filled.append(stand_ins[category].fill(positions, rng))
        return filled

    @cached_property
    def _known(self) -> list[Positions]:
        header = self.recording.header
        outcome_only = self.kind.trees or not header.lossless
        is_block = header.acceptance == "block"
        return [
            Positions.of(request, outcome_only=outcome_only, is_block=is_block)
            for request in self.requests
        ]

    @cached_property
    def _proposer(self) -> Proposer:
        return instantiate(self.recording.header.config["proposer"], _convert_="all")

    @cached_property
    def _chains(self) -> dict[int, Chains]:
        return {}

    def _redrafted(self, number: int) -> Chains:
        if number not in self._chains:
            self._chains[number] = redraft(
                self._proposer,
                self.requests[number],
                self.num_draft_tokens,
                self.recording.header.target["vocab_size"],
            )
        return self._chains[number]


def _known_or_empty(values: np.ndarray) -> list[float]:
    return values.tolist() if np.isfinite(values).all() else []


def _room(request: RecordedRequest, position: int, max_len: int) -> int:
    """Return how many drafts the engine allowed for."""
    limit = min(request.sampling.max_new_tokens, max_len - len(request.prompt_ids))
    return max(limit - position - 1, 0)
