"""What a drafter's own scores say about acceptance, learned from the run."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from specresearch.controllers.evidence import FORECAST_WEIGHT, AskedStep
from specresearch.controllers.scored_tree import ScoredTree, ranks
from specresearch.proposal import DraftForecast
from specresearch.tree_paths import along_paths

_EDGES = np.array([0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])  # of classes of scores
_SCORES = (np.append(0.0, _EDGES) + np.append(_EDGES, 1.0)) / 2  # of each class
# Judged nodes after which a class is believed more than the scores themselves, and that of a level
# more than those of all levels.
_PRIOR = 4.0


class ScoreCalibration:
    """How often a node with a score was accepted once its parent was, by level.

    Only nodes that seem worth it are verified, so a class of scores that was refused by chance
    would not be judged again. A forecast comes from whole trees, so it is never forgotten.

    Args:
        num_levels: The longest path that is drafted.
        memory: Steps whose nodes were chosen, after which one counts 1/e; `math.inf` to count all.
        forecast: What was measured before the run.
    """

    def __init__(
        self, num_levels: int, memory: float, forecast: DraftForecast | None = None
    ) -> None:
        self._own, self._foreseen = np.zeros((2, 2, num_levels, len(_SCORES)))
        self._accepted, self._judged = self._own
        self._kept = 1 - 1 / memory
        if forecast is not None and forecast.judged_scores:
            levels = slice(min(num_levels, len(forecast.judged_scores)))
            judged = np.array(forecast.judged_scores)[levels]
            weight = FORECAST_WEIGHT / judged.clip(min=FORECAST_WEIGHT)
            counts = np.array(forecast.accepted_scores)[levels], judged
            self._foreseen[:, levels] = weight * np.array(counts)
        self._solve()

    @property
    def rates(self) -> Float[np.ndarray, "K C"]:
        """The acceptance of each level and class of scores."""
        return self._by_depth[1:]

    @property
    def counts(self) -> tuple[Float[np.ndarray, "K C"], Float[np.ndarray, "K C"]]:
        """The nodes that were judged and those that were accepted, down to the last that was."""
        deepest = int(self._judged.any(axis=1).nonzero()[0].max(initial=-1)) + 1
        return self._judged[:deepest], self._accepted[:deepest]

    def _solve(self) -> None:
        """Let the rates follow the counts; there is a row of ones for roots."""
        accepted, judged = self._own + self._foreseen
        of_all = (accepted.sum(axis=0) + _PRIOR * _SCORES) / (judged.sum(axis=0) + _PRIOR)
        self._by_depth = np.ones((len(judged) + 1, len(_SCORES)))
        self._by_depth[1:] = (accepted + _PRIOR * of_all) / (judged + _PRIOR)

    def survival(self, tree: ScoredTree) -> Float[np.ndarray, " BN"]:
        """Return the chance of each node to be accepted with all nodes above it."""
        return along_paths(np.multiply, self._by_depth[*self._places(tree)], tree.above)

    def observe(self, steps: Sequence[AskedStep]) -> None:
        """Learn from the nodes that were verified in those steps whose nodes were chosen."""
        chosen = [(*step.chosen, step.record) for step in steps if step.chosen is not None]
        if not chosen:
            return
        trees, kept, records = zip(*chosen, strict=True)
        tree, verified = ScoredTree.joined(trees), np.concatenate(kept)
        on_path = tree.accepted(verified, [row for record in records for row in ranks(record)])
        # What lies behind the end of an output is not judged.
        is_whole = [
            new > accepted
            for record in records
            for new, accepted in zip(record.num_new_tokens, record.num_accepted_tokens, strict=True)
        ]
        is_judged = verified & (tree.depth > 0) & on_path[tree.parents]
        judged = (is_judged & np.repeat(is_whole, tree.widths)).nonzero()[0]
        depth, place = self._places(tree)
        place = depth[judged] - 1, place[judged]
        self._accepted *= self._kept ** len(trees)
        self._judged *= self._kept ** len(trees)
        np.add.at(self._judged, place, 1.0)
        np.add.at(self._accepted, place, on_path[judged] * 1.0)
        self._solve()

    def _places(self, tree: ScoredTree) -> tuple[Int[np.ndarray, " BN"], Int[np.ndarray, " BN"]]:
        """Return the depth of each node, as far as is distinguished, and the class of its score."""
        return np.minimum(tree.depth, len(self._judged)), np.searchsorted(_EDGES, tree.scores)
