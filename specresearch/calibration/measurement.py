"""What a calibration measured: acceptance and times; and the fastest shape by them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from specresearch.calibration.acceptance_table import Acceptance, AcceptanceTable
from specresearch.calibration.shape_times import Medians, ShapeTimes
from specresearch.controllers.evidence import AskedStep
from specresearch.controllers.score_calibration import ScoreCalibration
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.engine import Step
from specresearch.proposal import DraftForecast
from specresearch.proposers.draft_shape import DraftKindName, DraftShape
from specresearch.proposers.sequoia import likeliest_paths

PLAIN = DraftShape(0)
MOST_SIZES = 8  # whose times a forecast tells,
FAR_LARGER = 4  # up to so many times that of the fastest shape


@dataclass(frozen=True)
class Prediction:
    """What a step is predicted to do in a shape.

    Attributes:
        tokens: Tokens of a request.
        acceptance_length: Tokens of a request that has drafts.
        seconds: Of the whole batch's step.
        num_rows: Rows that the prediction of tokens rests on.
    """

    shape: DraftShape
    tokens: float
    acceptance_length: float
    seconds: float
    num_rows: int = 0


@dataclass(frozen=True)
class _Drafted:
    """What a step drafted.

    Attributes:
        most: Drafts that a row could have had.
        num_drafts: Drafts of each row.
        num_probes: Probe nodes of a row; a smaller shape has fewer in proportion.
    """

    most: int
    num_drafts: Sequence[int]
    num_probes: int

    def num_nodes(self, most: int) -> int:
        """Return the nodes of the step had a row had at most so many drafts."""
        num_probes = -(-self.num_probes * most // self.most)
        return sum(1 + num_probes + min(num, most) for num in self.num_drafts)


class ShapeMeasurement:
    """Steps of a proposer in several shapes, and of plain decoding among them.

    Args:
        shapes: The largest shape of each kind.
        is_num_auto: Whether smaller ones may be chosen.
    """

    def __init__(self, shapes: Sequence[DraftShape], *, is_num_auto: bool = True) -> None:
        self.tables = {shape.kind: AcceptanceTable(shape) for shape in shapes}
        self.times = ShapeTimes()
        self._levels = {shape.kind: Medians() for shape in shapes}
        self._scores = {
            shape.kind: ScoreCalibration(shape.depth or shape.num_draft_tokens, math.inf)
            for shape in shapes
        }
        self.is_num_auto = is_num_auto
        self._drafted: dict[DraftKindName, list[_Drafted]] = {shape.kind: [] for shape in shapes}

    def add(self, step: Step, shape: DraftShape) -> None:
        """Add a step that drafted in this shape."""
        num_drafts = [length - 1 for length in step.delivery.lengths]
        num_probes = 0
        if step.proposal.probe is not None:
            num_probes = step.proposal.topology.num_nodes - max(step.delivery.lengths)
        num_nodes = len(num_drafts) * (1 + num_probes) + sum(num_drafts)
        if not shape.num_draft_tokens:
            self.times.add(PLAIN.kind, 0, num_nodes, step.record)
            for kind, table in self.tables.items():
                self.times.rest[kind].add(num_nodes, _rest(step))
                self._levels[kind].add(0, step.record.times.propose)
                table.add_plain(step)
            return
        self.times.add(shape.kind, _draft_size(shape), num_nodes, step.record)
        if any(num_drafts):
            deepest = max(step.record.draft_depth)
            self._levels[shape.kind].add(deepest, step.record.times.propose)
        self.tables[shape.kind].add(step, shape)
        if step.proposal.can_be_chosen_from:
            tree = ScoredTree.of(step.proposal)
            whole = AskedStep(step.record, (), (), (tree, tree.is_valid))
            self._scores[shape.kind].observe([whole])
        self._drafted[shape.kind].append(_Drafted(shape.num_draft_tokens, num_drafts, num_probes))

    def plain(self, batch_size: int) -> Prediction:
        """Return what plain decoding does."""
        kind = next(iter(self.tables))
        return Prediction(PLAIN, 1.0, 1.0, float(self.times.rest[kind].at([batch_size])[0]))

    def predictions(self) -> Iterator[Prediction]:
        """Yield a prediction for every shape that may be chosen."""
        for table in self.tables.values():
            for shape, acceptance in self._options(table):
                yield self._prediction(shape, acceptance)

    def forecast(
        self, best: Prediction, confirmation: "ShapeMeasurement | None" = None
    ) -> DraftForecast:
        """Return what drafts of the kind of the fastest shape are expected to yield and to take.

        Args:
            confirmation: Of that shape, whose times of steps in rows are nearer to those of a run.
        """
        table, kind = self.tables[best.shape.kind], best.shape.kind
        drafted = 1.0
        if best.shape.paths is not None:
            gained, nodes = self._by_level(table, best)
        else:
            sizes = self._best_sizes(table)
            yields = [table.acceptance(shape) for shape in sizes]
            gained = np.diff([1.0, *(each.tokens for each in yields)])
            drafted = min((yields[-1].tokens - 1) / max(yields[-1].length - 1, 1e-9), 1.0)
            nodes = drafted * np.diff([0, *(shape.num_draft_tokens for shape in sizes)])
        plain = self.times.rest[PLAIN.kind].samples
        num_rows = max(plain, key=lambda size: len(plain[size]))
        levels, rest = self._levels[kind], self.times.rest[kind]
        if confirmation is not None:
            levels = levels.replaced(confirmation._levels[kind])
            rest = rest.replaced(confirmation.times.rest[kind])
        enough = FAR_LARGER * num_rows * (1 + best.shape.num_draft_tokens)
        judged, accepted = (tuple(map(tuple, c.tolist())) for c in self._scores[kind].counts)
        return DraftForecast(
            tuple(np.minimum.accumulate(gained.clip(0.0, 1.0)).tolist()),
            tuple(nodes.clip(min=0.0).tolist()),
            drafted,
            num_rows,
            levels.at_some(MOST_SIZES),
            tuple(
                (size - num_rows, seconds)
                for size, seconds in rest.at_some(MOST_SIZES, num_rows, enough)
            ),
            judged_scores=judged,
            accepted_scores=accepted,
        )

    def _best_sizes(self, table: AcceptanceTable) -> list[DraftShape]:
        """Return the fastest shape of each depth; of chains there is one."""
        by_depth: dict[int, Prediction] = {}
        for shape, acceptance in self._options(table):
            new, depth = self._prediction(shape, acceptance), shape.depth or shape.num_draft_tokens
            old = by_depth.get(depth)
            if old is None or new.tokens / new.seconds > old.tokens / old.seconds:
                by_depth[depth] = new
        return [by_depth[depth].shape for depth in sorted(by_depth)]

    def _by_level(
        self, table: AcceptanceTable, best: Prediction
    ) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """Return what is accepted in each level of a static tree, and its nodes."""
        size = best.shape.num_draft_tokens
        paths = likeliest_paths(table.by_rank.acceptance(), size)
        levels = [len(path) - 1 for path, _ in paths]
        gained = np.bincount(levels, [probability for _, probability in paths])
        return gained * (best.tokens - 1) / max(gained.sum(), 1e-9), np.bincount(levels) * 1.0

    def confirmed(self, earlier: Prediction) -> Prediction:
        """Return the prediction for a shape that was chosen by other steps and measured by these.

        Its time is that of these steps; both tell what is accepted.
        """
        table = self.tables[earlier.shape.kind]
        share = table.num_rows / max(table.num_rows + earlier.num_rows, 1)
        new = table.acceptance(earlier.shape)
        mixed = Acceptance(
            share * new.tokens + (1 - share) * earlier.tokens,
            share * new.length + (1 - share) * earlier.acceptance_length,
        )
        return self._prediction(earlier.shape, mixed)

    def _prediction(self, shape: DraftShape, acceptance: Acceptance) -> Prediction:
        return Prediction(
            shape=shape,
            tokens=acceptance.tokens,
            acceptance_length=acceptance.length,
            seconds=self.seconds(shape),
            num_rows=self.tables[shape.kind].num_rows,
        )

    def _options(self, table: AcceptanceTable) -> Iterator[tuple[DraftShape, Acceptance]]:
        """Yield the shapes of one kind with what is accepted of them."""
        largest = table.largest
        first = 1 if self.is_num_auto else largest.num_draft_tokens
        sizes = range(first, largest.num_draft_tokens + 1)
        if largest.tree == "static":
            paths = likeliest_paths(table.by_rank.acceptance(), largest.num_draft_tokens)
            means = 1 + np.cumsum([probability for _, probability in paths])
            for size in sizes[: len(paths)]:
                shape = DraftShape(size, "static", paths=tuple(path for path, _ in paths[:size]))
                tokens = float(means[size - 1]) * table.evenness(shape)
                yield shape, Acceptance(tokens, tokens)
            return
        for size in sizes:
            depths: Iterable[int | None] = [None]
            if largest.depth is not None:
                depths = range(1, min(largest.depth, size) + 1)
            for depth in depths:
                shape = replace(largest, num_draft_tokens=size, depth=depth)
                yield shape, table.acceptance(shape)

    def seconds(self, shape: DraftShape) -> float:
        """Return the predicted seconds of a step in this shape."""
        draft = self.times.draft[shape.kind].at([_draft_size(shape)])[0]
        most = shape.num_draft_tokens
        sizes = [step.num_nodes(most) for step in self._drafted[shape.kind] if step.most >= most]
        return float(draft + self.times.rest[shape.kind].at(sizes).mean())


def _rest(step: Step) -> float:
    return step.record.times.work - step.record.times.propose


def _draft_size(shape: DraftShape) -> int:
    """Return what the time of drafting grows with: passes of a drafter."""
    return shape.num_draft_tokens if shape.depth is None else shape.depth
