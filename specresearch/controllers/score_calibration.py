"""What a drafter's own scores say about acceptance, learned from the run."""

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.controllers.scored_tree import ScoredTree
from specresearch.metrics import StepRecord
from specresearch.tree_paths import along_paths

_EDGES = np.array([0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])  # of classes of scores
_SCORES = (np.append(0.0, _EDGES) + np.append(_EDGES, 1.0)) / 2  # of each class
_PRIOR = 4.0  # judged nodes after which a class is believed more than the scores themselves


class ScoreCalibration:
    """How often a node with a score was accepted once its parent was, by level.

    Args:
        num_levels: The longest path that is drafted.
        memory: Observed trees after which one counts 1/e.
    """

    def __init__(self, num_levels: int, memory: float) -> None:
        self._accepted, self._judged = np.zeros((2, num_levels, len(_SCORES)))
        self._kept = 1 - 1 / memory

    @property
    def rates(self) -> Float[np.ndarray, "K C"]:
        """The acceptance of each level and class of scores."""
        return (self._accepted + _PRIOR * _SCORES) / (self._judged + _PRIOR)

    def survival(self, tree: ScoredTree) -> Float[np.ndarray, " BN"]:
        """Return the chance of each node to be accepted with all nodes above it."""
        level, place = self._places(tree)
        rates = np.where(tree.depth > 0, self.rates[level, place], 1.0)
        return along_paths(np.multiply, rates, tree.parents)

    def observe(
        self, tree: ScoredTree, verified: Bool[np.ndarray, " BN"], record: StepRecord
    ) -> None:
        """Learn from the nodes of a tree that were verified."""
        width, on_path = tree.num_nodes, tree.accepted(verified, record)
        # What lies behind the end of an output is not judged.
        is_whole = np.array(record.num_new_tokens) > np.array(record.num_accepted_tokens)
        is_judged = verified & (tree.depth > 0) & on_path[tree.parents]
        is_judged &= np.repeat(is_whole, width)
        judged = is_judged.nonzero()[0]
        level, place = self._places(tree)
        place = level[judged], place[judged]
        self._accepted *= self._kept
        self._judged *= self._kept
        np.add.at(self._judged, place, 1.0)
        np.add.at(self._accepted, place, on_path[judged] * 1.0)

    def _places(self, tree: ScoredTree) -> tuple[Int[np.ndarray, " BN"], Int[np.ndarray, " BN"]]:
        """Return the level and the class of each node; a root counts as of the first level."""
        level = (tree.depth - 1).clip(min=0, max=len(self._judged) - 1)
        return level, np.searchsorted(_EDGES, tree.scores)
