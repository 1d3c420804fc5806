"""The steps before anything can be decided: some without drafts, and some with few."""

from collections.abc import Sequence
from math import ceil

from specresearch.proposal import DraftForecast, DraftKind

# Levels of each step. The first step of each depth is left out of the times.
_LEVELS = (0, 0, 0, 3, 3, 3)
_LEVELS_FORESEEN = (0, 3)  # where times were measured before the run; lazy prefill was not
_NODES, _LAST_NODES = 16, 4  # two numbers of nodes tell what one costs
_FRACTION = 3  # one request in 3 drafts, since a lazy drafter has to prefill first


class FirstSteps:
    """What the first steps draft.

    Args:
        kind: What drafts may be. Chains have no last step, which is there for trees.
        forecast: What was measured before the run.
    """

    def __init__(self, kind: DraftKind, forecast: DraftForecast | None) -> None:
        self._kind = kind
        self._levels = _LEVELS if kind.trees else _LEVELS[:-1]
        if forecast is not None and forecast.draft_seconds:
            self._levels = _LEVELS_FORESEEN

    def __len__(self) -> int:
        return len(self._levels)

    def is_last(self, step: int) -> bool:
        return step == len(self) - 1

    def num_nodes(self, step: int) -> int:
        """Return the nodes of a tree; in the last step one that has scores is cut to a path."""
        return _LAST_NODES if self.is_last(step) and not self._kind.scored else _NODES

    def depths(self, step: int, limits: Sequence[int]) -> list[int]:
        """Return how deep each row drafts.

        Args:
            limits: The most levels of each row; 0 for those that may not draft.
        """
        few = ceil(sum(map(bool, limits)) / _FRACTION)
        free = [b for b, limit in enumerate(limits) if limit][:few]
        level = self._levels[step]
        return [min(level, limit) if b in free else 0 for b, limit in enumerate(limits)]
