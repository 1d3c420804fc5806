"""What the target accepts of a draft and of every smaller one, from the steps that drafted it."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from specresearch.engine import Step
from specresearch.proposers.draft_shape import DraftShape
from specresearch.proposers.sequoia import RankTable

ONE_DEPTH = 1  # of tables for shapes whose depth is not chosen


@dataclass
class AcceptanceTable:
    """Counts acceptance for one kind of shape: by usefulness of a node, and by limit of depth.

    A smaller draft of the same kind keeps the most useful nodes within its depth. So a step tells
    of each accepted node in which smaller drafts it would have been, and what they would have
    given.

    Attributes:
        largest: The largest shape, with as many drafts as there are columns.
        accepted: How often the node of this place was accepted, by limit of depth - 1.
        drafted: How often a draft had room for such a node.
        by_rank: Acceptance by depth and rank, for static trees.
        num_rows: Judged rows, drafted or not.
        num_undrafted: Rows for which the proposer found nothing.
    """

    largest: DraftShape
    by_rank: RankTable = field(default_factory=RankTable)
    num_rows: int = 0
    num_undrafted: int = 0

    def __post_init__(self) -> None:
        shape = (self.largest.depth or ONE_DEPTH, self.largest.num_draft_tokens)
        self.accepted: Int[np.ndarray, "D N"] = np.zeros(shape, dtype=np.int64)
        self.drafted: Int[np.ndarray, "D N"] = np.zeros(shape, dtype=np.int64)

    def add(self, step: Step, shape: DraftShape) -> None:
        """Count a step that drafted in a shape of this kind.

        Rows whose draft was as deep as their output had room for may have been cut, and are left
        out.
        """
        drafts, verdict = step.delivery.drafts, step.delivery.verdict
        places = self._places(step)
        depths = (drafts.depth * drafts.acceptable).max(1)
        for b, row in enumerate(step.batch.rows):
            if depths[b] and depths[b] >= row.num_remaining + step.delivery.num_new[b] - 1:
                continue
            num_accepted = int(verdict.num_accepted[b])
            path = verdict.path[b, 1 : num_accepted + 1].numpy()
            self.num_rows += 1
            self.num_undrafted += not depths[b]
            limits = np.arange(shape.depth or ONE_DEPTH)
            self.drafted[limits, : shape.num_draft_tokens] += 1
            for limit in limits:
                nodes = path if shape.depth is None else path[: limit + 1]
                np.add.at(self.accepted[limit], places[limit][b, nodes] - 1, 1)
            self._add_ranks(step, b)

    def _add_ranks(self, step: Step, b: int) -> None:
        ranks, children = step.record.accepted_ranks, step.record.num_children
        if ranks is not None and children is not None:
            self.by_rank.add(ranks[b], children[b])

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

    def expected_tokens(self, shape: DraftShape) -> float:
        """Return the tokens of a step that drafts in a smaller shape, the target's own included."""
        limit = (shape.depth or ONE_DEPTH) - 1
        counts = slice(0, shape.num_draft_tokens)
        accepted, drafted = self.accepted[limit, counts], self.drafted[limit, counts]
        return 1.0 + float((accepted / np.maximum(drafted, 1)).sum())


def _confidence(step: Step) -> Float[np.ndarray, "B N"]:
    """Return the product of the drafter's probabilities along the path to every node.

    Without them, the deeper a node the less useful it is.
    """
    scores, drafts = step.proposal.scores, step.delivery.drafts
    if scores is None:
        return -drafts.depth.astype(float)
    confidence = scores.double().cpu().numpy()  # sync
    rows = np.arange(len(confidence))
    parents = np.broadcast_to(drafts.parents, drafts.tokens.shape)
    for node in range(1, confidence.shape[1]):
        confidence[:, node] *= confidence[rows, parents[:, node]]
    return np.where(drafts.acceptable, confidence, -1.0)
