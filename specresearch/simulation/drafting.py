"""What a recording says of drafting: which requests can be decoded again, under which rules, and what that assumes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from hydra.utils import get_class, instantiate
from jaxtyping import Bool, Int

from specresearch.acceptance import RULES
from specresearch.batch import Batch, Request, RequestState
from specresearch.proposal import DraftKind
from specresearch.proposers import Proposer
from specresearch.recording.recording import RecordedRequest, Recording
from specresearch.simulation.acceptance import (
    Blocks,
    Coins,
    Positions,
    Replay,
    StandIns,
    Table,
    Trees,
    run_ends,
)

EXACT_IF_GREEDY = ("typical",)  # rules that are lossy at other temperatures only


@dataclass(frozen=True)
class Drafting:
    """One side of a recording, to be drafted again under `rule`, by up to `num_draft_tokens` drafts in a step.

    Raises ValueError for what only the model knows, with the reason.
    """

    recording: Recording
    side: str
    rule: str
    num_draft_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        header = self.recording.header
        if not self.requests:
            raise ValueError(
                f"{self.recording.path} holds no finished request of side {self.side!r}"
            )
        if self.rule not in RULES:
            raise ValueError(f"acceptance={self.rule} is not known; use one of {', '.join(RULES)}")
        same, rule = self.rule == header.acceptance, RULES[self.rule]
        warm = next(
            (request.sampling for request in self.requests if not request.sampling.is_greedy), None
        )
        is_exact = rule.lossless or (self.rule in EXACT_IF_GREEDY and warm is None)
        if not (same or is_exact):
            raise ValueError(
                f"acceptance={self.rule} moves the output to another text than the recorded one, and only the model knows how "
                "that would go on; measure it with specresearch.run"
            )
        if not (same or header.lossless):
            raise ValueError(
                f"the recording was made with acceptance={header.acceptance}, whose text is not a sample of the target's "
                f"distribution, so that nothing follows for acceptance={self.rule}; record with acceptance=rejection"
            )
        refusal = rule().refuses(self.kind)
        if refusal:
            raise ValueError(f"acceptance={self.rule} cannot judge the recorded drafts: {refusal}")
        if self.rule == "greedy" and warm is not None:
            raise ValueError(
                f"acceptance=greedy is exact for temperature 0 only, and the recording has temperature={warm.temperature}"
            )
        self._check_drafts()

    def _check_drafts(self) -> None:
        header = self.recording.header
        if self.can_draft_again or not self.num_draft_tokens:
            return
        if header.fixed.get(self.side) is None:
            raise ValueError(
                f"side {self.side!r} was recorded under a controller that chose how much to draft, so that it is not known what "
                "the drafter would have made otherwise; record with controller=fixed"
            )
        if self.kind.trees and self.num_draft_tokens != header.num_draft_tokens:
            raise ValueError(
                f"num_draft_tokens={self.num_draft_tokens}: the recording has trees of {header.num_draft_tokens} nodes, and what "
                "others would hold is not known; record with that number"
            )

    @property
    def kind(self) -> DraftKind:
        return DraftKind(**self.recording.header.kind)

    @cached_property
    def requests(self) -> tuple[RecordedRequest, ...]:
        return self.recording.requests(self.side)

    @cached_property
    def can_draft_again(self) -> bool:
        """The proposer has nothing but the request's own tokens to go on, so that it can be asked again."""
        told = self.recording.header.config.get("proposer")
        if not told or self.kind.trees:
            return False
        kind = get_class(told["_target_"])
        inherited = all(
            getattr(kind, name) is getattr(Proposer, name)
            for name in ("bind", "lazy_prefill", "observe")
        )
        reads_only_tokens = inherited and not kind.hidden_layers
        return (
            reads_only_tokens
            and not {"draft", "proposers"} & told.keys()
            and self._proposer.memory != "warm"
        )

    @property
    def reads_late(self) -> bool:
        """The drafter reads a prompt when it first drafts for it."""
        return bool(self.recording.steps["num_lazy_prefill_tokens"].any())

    @cached_property
    def _proposer(self) -> Proposer:
        return instantiate(self.recording.header.config["proposer"], _convert_="all")

    @cached_property
    def always_drafts_all(self) -> bool:
        """Every recorded step drafted as much as it was allowed to."""
        most, max_len = (
            self.recording.header.fixed[self.side],
            self.recording.header.target["max_len"],
        )
        assert most is not None
        return all(
            len(step.draft_ids)
            == min(most if own is None else own, _room(request, step.position, max_len))
            for request in self.requests
            for step in request.steps
            for own in [request.num_draft_tokens]
        )

    @property
    def assumption(self) -> str:
        """What the numbers of accepted drafts rest on."""
        if not self.num_draft_tokens:
            return "nothing is drafted"
        if self.can_draft_again:
            return "drafts are made again from the recorded text by the proposer itself; exact"
        if self.kind.trees:
            return "trees as recorded; one that begins inside a recorded path has the rest of that path"
        share = np.mean(np.concatenate([~p.asked for p in self._known]))
        missing = f"{share:.1%} of positions were never drafted at, and others stand in for them"
        if self.always_drafts_all:
            return f"what the drafter thinks of a position does not depend on where the step began; {missing}"
        return f"a draft that begins inside a recorded one is the rest of that one; {missing}"

    @cached_property
    def _tables(self) -> dict[int, Table]:
        return {}

    @cached_property
    def _known(self) -> list[Positions]:
        by_outcome = self.kind.trees or not self.recording.header.lossless
        is_block = self.recording.header.acceptance == "block"
        return [
            Positions.of(request, by_outcome=by_outcome, is_block=is_block)
            for request in self.requests
        ]

    @cached_property
    def positions(self) -> list[Positions]:
        """Of every request, with stand-ins from its own category."""
        rng = np.random.default_rng([self.seed, 1])
        categories = [request.category for request in self.requests]
        stand_ins = {
            name: StandIns(
                [p for p, own in zip(self._known, categories, strict=True) if own == name]
            )
            for name in set(categories)
        }
        return [
            stand_ins[name].fill(p, rng) for name, p in zip(categories, self._known, strict=True)
        ]

    def replay(self, number: int, copy: int = 0) -> Replay:
        """The request of that number. copy: 0 repeats what the recorded rule drew; others draw anew."""
        if not self.num_draft_tokens:
            nothing = [0] * self.requests[number].num_tokens
            return Table(nothing, nothing)
        if self.can_draft_again:
            return self._drafted_again(number)
        if self.kind.trees:
            return self._recorded_trees(number)
        positions, known = self.positions[number], self._known[number]
        uniforms = np.random.default_rng([self.seed, 2, number, copy]).random(len(known.asked))
        if copy == 0:
            below = np.nan_to_num(known.threshold).clip(0, 1)
            as_drawn = np.where(known.accepted, uniforms * below, below + uniforms * (1 - below))
            uniforms = np.where(known.asked, as_drawn, uniforms)
        accepts = uniforms < positions.odds
        if not self.always_drafts_all:
            return self._rest_of_recorded(number, accepts)
        if self.rule == "block" and not self.requests[number].sampling.is_greedy:
            return Blocks(positions.odds, uniforms)
        return Coins(accepts)

    def told(self, number: int) -> tuple[list[float], list[float]]:
        """What the drafter thinks of its draft at every position, and how probable acceptance is; empty where it is not known."""
        if self.can_draft_again or self.kind.trees or not self.num_draft_tokens:
            return [], []
        positions = self.positions[number]
        scores, expected = (
            v.tolist() if np.isfinite(v).all() else []
            for v in (positions.score, positions.expected)
        )
        return scores, expected

    def _drafted_again(self, number: int) -> Table:
        if number not in self._tables:
            vocab_size = self.recording.header.target["vocab_size"]
            self._tables[number] = draft_again(
                self._proposer, self.requests[number], self.num_draft_tokens, vocab_size
            )
        return self._tables[number]

    def _rest_of_recorded(self, number: int, accepts: Bool[np.ndarray, " E"]) -> Table:
        lengths, _ = _recorded_drafts(self.requests[number])
        met = np.array(run_ends(accepts)) - np.arange(len(accepts))
        return Table(lengths.tolist(), met.tolist())

    def _recorded_trees(self, number: int) -> Trees:
        known = self._known[number]
        depth, num_nodes = _recorded_drafts(self.requests[number])
        return Trees(num_nodes.tolist(), depth.tolist(), known.asked & known.accepted)


def draft_again(
    proposer: Proposer, request: RecordedRequest, num_draft_tokens: int, vocab_size: int
) -> Table:
    """The drafts of a proposer that reads nothing but tokens, asked at every position of the recorded output."""
    total = len(request.prompt_ids) + request.num_tokens + 1
    state = RequestState(Request(request.prompt_ids, request.sampling), 0, 0, frozenset(), total)
    text, device = request.token_ids.tolist(), torch.device("cpu")
    lengths, met = [], []
    proposer.start([state], None)
    for position, token in enumerate(text):
        proposal = proposer.propose(Batch([state], device, vocab_size), [num_draft_tokens])
        drafts = proposal.token_ids[0, 1 : int(proposal.lengths[0])].tolist()
        agrees = [draft == own for draft, own in zip(drafts, text[position:], strict=False)]
        lengths.append(len(drafts))
        met.append([*agrees, False].index(False))
        state.tokens.append(token)
    proposer.finish([0])
    return Table(lengths, met)


def _recorded_drafts(
    request: RecordedRequest,
) -> tuple[Int[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """For every position, how much of the path recorded there is left, and how many nodes its draft had."""
    left, num_nodes = np.zeros((2, request.num_tokens), dtype=np.int64)
    for step in request.steps:
        here = slice(step.position, step.position + step.num_new)
        left[here] = np.maximum(step.depth - np.arange(step.num_new), 0)
        num_nodes[here] = len(step.draft_ids)
    return left, num_nodes


def _room(request: RecordedRequest, position: int, max_len: int) -> int:
    """How many drafts the engine allowed for."""
    return max(
        min(request.sampling.max_new_tokens, max_len - len(request.prompt_ids)) - position - 1, 0
    )
