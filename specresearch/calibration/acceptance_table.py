"""What the target accepts of a draft and of every smaller one, from the steps that drafted it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from specresearch.engine import Step
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.sequoia import RankTable
from specresearch.request import RequestState
from specresearch.tree_paths import along_paths, ancestors, flat_parents

ONE_DEPTH = 1  # of tables for shapes whose depth is not chosen
STRETCH = 16  # tokens over which acceptance is taken to be even
PRIOR_STEPS = 0.5  # of mean acceptance, that a stretch is taken to have had besides its own


@dataclass
class _Stretch:
    """Steps of one request, one after another, that deliver `STRETCH` tokens or a few more.

    Attributes:
        accepted: How often the node of this place was accepted, by limit of depth - 1.
        drafted: How often a draft had room for such a node.
        num_tokens: Tokens that these steps delivered.
    """

    accepted: Int[np.ndarray, "D N"]
    drafted: Int[np.ndarray, "D N"]
    num_steps: int = 0
    num_undrafted: int = 0
    num_tokens: int = 0


@dataclass(frozen=True)
class Acceptance:
    """What steps in one shape are expected to deliver.

    Attributes:
        tokens: Tokens of a step, the target's own included.
        length: The same of steps with drafts: the mean acceptance length.
    """

    tokens: float
    length: float


class AcceptanceTable:
    """Counts acceptance for one kind of shape: by usefulness of a node, and by limit of depth.

    A smaller draft of the same kind keeps the most useful nodes within its depth. So a step tells
    of each accepted node in which smaller drafts it would have been, and what they would have
    given.

    Long drafts pass through easy text in few steps, short ones and plain steps in many. So steps
    are weighted by the text that they stand for: a request counts by the tokens of its output, or
    the most it may have if it is not finished, and within one every stretch counts by its tokens.

    Args:
        largest: The largest shape, with as many drafts as there are places.

    Attributes:
        by_rank: Acceptance by depth and rank, for static trees.
        num_rows: Judged rows, drafted or not.
    """

    def __init__(self, largest: DraftShape) -> None:
        self.largest = largest
        self.by_rank = RankTable()
        self.num_rows = 0
        self._requests: dict[str, list[_Stretch]] = {}
        self._lengths: dict[str, int] = {}  # of outputs

    def add(self, step: Step, shape: DraftShape) -> None:
        """Count a step that drafted in a shape of this kind.

        Near the end of an output there is room for a part of the shape only.
        """
        drafts, verdict = step.delivery.drafts, step.delivery.verdict
        places = self._places(step)
        depths = (drafts.depth * drafts.acceptable).max(1)
        for b, row in enumerate(step.batch.rows):
            num_new = step.delivery.num_new[b]
            stretch = self._add_tokens(row, num_new)
            room = row.num_remaining + num_new - 1
            if not room:
                continue
            num_kept, limits = shape.num_draft_tokens, range(ONE_DEPTH)
            if shape.depth is None:
                num_kept = min(num_kept, room)
            else:
                limits = range(min(shape.depth, room))
            path = verdict.path[b, 1 : int(verdict.num_accepted[b]) + 1].numpy()
            self.num_rows += 1
            stretch.num_steps += 1
            stretch.num_undrafted += int(depths[b] == 0)
            stretch.drafted[limits, :num_kept] += 1
            for limit in limits:
                nodes = path if shape.depth is None else path[: limit + 1]
                place = places[limit][b, nodes] - 1
                np.add.at(stretch.accepted[limit], place[place < num_kept], 1)
            self._add_ranks(step, b)

    def add_plain(self, step: Step) -> None:
        """Count the tokens of a step without drafts among others."""
        for row, num_new in zip(step.batch.rows, step.delivery.num_new, strict=True):
            self._add_tokens(row, num_new)

    def _add_tokens(self, row: RequestState, num_new: int) -> _Stretch:
        stretch = self._stretch(row.id)
        stretch.num_tokens += num_new
        num_missing = 0 if row.finish_reason else row.num_remaining
        self._lengths[row.id] = len(row.output_ids) + num_missing
        return stretch

    def _stretch(self, id: str) -> _Stretch:
        """Return the stretch that a request is in."""
        stretches = self._requests.setdefault(id, [])
        if not stretches or (stretches[-1].num_steps and stretches[-1].num_tokens >= STRETCH):
            shape = (self.largest.depth or ONE_DEPTH, self.largest.num_draft_tokens)
            stretches.append(_Stretch(np.zeros(shape, np.int64), np.zeros(shape, np.int64)))
        return stretches[-1]

    def _add_ranks(self, step: Step, b: int) -> None:
        record = step.record
        if record.accepted_ranks is not None and record.num_children is not None:
            self.by_rank.add(record.accepted_ranks[b], record.num_children[b])
        else:  # a chain, whose nodes are of rank 0
            accepted, judged = record.num_accepted_tokens[b], record.judged_depth[b]
            self.by_rank.add([0] * accepted, [1] * judged)

    def _places(self, step: Step) -> list[Int[np.ndarray, "B N"]]:
        """Return the place of each node in the order of usefulness, for each limit of depth."""
        drafts = step.delivery.drafts
        if self.largest.depth is None:  # proposers of fixed shapes list the most useful first
            return [np.broadcast_to(np.arange(drafts.tokens.shape[1]), drafts.tokens.shape)]
        order = np.argsort(-_confidence(step), axis=1, kind="stable")
        is_draft = drafts.acceptable.copy()
        is_draft[:, 0] = False
        places = []
        for limit in range(1, self.largest.depth + 1):
            counts = np.take_along_axis(is_draft & (drafts.depth <= limit), order, 1).cumsum(1)
            place = np.zeros_like(counts)
            np.put_along_axis(place, order, counts, 1)
            places.append(place)
        return places

    def acceptance(self, shape: DraftShape) -> Acceptance:
        """Return what steps in a shape that is no larger deliver."""
        if not self._stretches:
            return Acceptance(1.0, 1.0)
        place = (shape.depth or ONE_DEPTH) - 1, shape.num_draft_tokens - 1
        num_tokens, shares = self._weights
        tokens = self._tokens[:, *place]
        steps = num_tokens / tokens  # that such drafts take for as much text
        length = 1 + float((steps * (tokens - 1)).sum() / max((steps * shares).sum(), 1e-9))
        return Acceptance(float(num_tokens.sum() / steps.sum()), length)

    def evenness(self, shape: DraftShape) -> float:
        """Return the tokens of such steps over those that the mean acceptance would give."""
        if not self._stretches:
            return 1.0
        place = (shape.depth or ONE_DEPTH) - 1, shape.num_draft_tokens - 1
        return self.acceptance(shape).tokens / float(1 + self._rates.cumsum(1)[place])

    @cached_property
    def _stretches(self) -> list[_Stretch]:
        every = [stretch for stretches in self._requests.values() for stretch in stretches]
        return [stretch for stretch in every if stretch.num_steps]

    @cached_property
    def _rates(self) -> Float[np.ndarray, "D N"]:
        """Acceptance of every place, over all steps."""
        accepted = sum(stretch.accepted for stretch in self._stretches)
        drafted = sum(stretch.drafted for stretch in self._stretches)
        return np.asarray(accepted / np.maximum(drafted, 1))

    @cached_property
    def _tokens(self) -> Float[np.ndarray, "S D N"]:
        """Tokens of a step in every shape, by stretch.

        Places that a stretch has seldom drafted are filled with the mean acceptance there, times
        how much more the stretch accepts than the mean where it has drafted.
        """
        by_stretch = []
        for stretch in self._stretches:
            prior = PRIOR_STEPS * self._rates
            foreseen = (stretch.drafted * self._rates).sum() + prior.sum()
            ease = (stretch.accepted.sum() + prior.sum()) / max(foreseen, 1e-9)
            hits = stretch.accepted + np.minimum(ease * prior, PRIOR_STEPS)
            by_stretch.append(1 + (hits / (stretch.drafted + PRIOR_STEPS)).cumsum(1))
        return np.stack(by_stretch)

    @cached_property
    def _weights(self) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
        """The tokens of text that each stretch stands for, and its share of steps with drafts."""
        weights, shares = [], []
        for id, stretches in self._requests.items():
            total = sum(stretch.num_tokens for stretch in stretches if stretch.num_steps)
            for stretch in stretches:
                if stretch.num_steps:
                    weights.append(self._lengths[id] * stretch.num_tokens / total)
                    shares.append(1 - stretch.num_undrafted / stretch.num_steps)
        return np.array(weights), np.array(shares)


def _confidence(step: Step) -> Float[np.ndarray, "B N"]:
    """Return the product of the drafter's probabilities along the path to every node.

    Without them, the deeper a node the less useful it is.
    """
    scores, drafts = step.proposal.scores, step.delivery.drafts
    if scores is None:
        return -drafts.depth.astype(float)
    given_parent = scores.double().cpu().numpy()  # sync
    given_parent[:, 0] = 1.0
    parents = flat_parents(drafts.parents, len(given_parent))
    above = ancestors(parents, step.proposal.topology.max_depth)
    confidence = along_paths(np.multiply, given_parent.ravel(), above)
    return np.where(drafts.acceptable, confidence.reshape(given_parent.shape), -1.0)
