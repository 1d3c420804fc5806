"""How large the trees of a step are."""

from collections.abc import Sequence
from math import ceil

from specresearch.controllers.evidence import AskedStep

_LEAST = 4  # nodes of each level, if there is room for them
_START_WIDTH = 2  # nodes of a level to expand before any were verified
_SPARE = 1.5  # nodes to draft for each that is verified, in all and of a level
_FEW = 4  # requests below which choosing nodes takes longer than it saves
_CHOICES = 4  # over which the number of chosen nodes is averaged


class TreeSize:
    """How many nodes a row drafts: enough to choose from by their scores, or as many as are chosen.

    Nodes of few requests are not chosen in every step, but until as many choices are known as are
    remembered, and then once a decision. In between a row drafts the number that was chosen.

    Args:
        memory: Steps with drafts after which a verified tree counts 1/e.

    Attributes:
        width: Nodes of a level to expand.
        chooses: Nodes are chosen in this step.
    """

    def __init__(self, memory: float) -> None:
        self.width, self.chooses = _START_WIDTH, True
        self._memory = memory
        # Nodes of a row, which fades. What many more would cost, these steps cannot tell.
        self._most_verified = 0.0
        self._num_choices, self._num_chosen = 0, 0.0

    def num_nodes(self, num_rows: int, depth: int, *, is_new: bool) -> int:
        """Return the nodes that each row may draft in the next step.

        Args:
            num_rows: The requests in the batch.
            depth: The levels of the deepest draft.
            is_new: Depths were decided for this step.
        """
        is_known = self._num_choices >= self._memory
        self.chooses = num_rows >= _FEW or is_new or not is_known
        if not self.chooses:
            return max(round(self._num_chosen), 1)
        # The powers of 2 alone, since graphs on a GPU are made for each number.
        return _power_of_2(max(_LEAST * depth, ceil(_SPARE * self._most_verified)))

    def widen(self, widest: float) -> None:
        """Expand as many nodes of a level as the widest is expected to verify, and some more."""
        self.width = _power_of_2(ceil(_SPARE * widest))

    def observe(self, steps: Sequence[AskedStep]) -> None:
        """Learn from what was verified, the newest step last."""
        for step in steps:
            drafted = [number for number in step.record.num_draft_tokens if number]
            if drafted:
                faded = (1 - 1 / self._memory) * self._most_verified
                self._most_verified = max(faded, float(max(drafted)))
            if step.chosen is not None:
                mean = sum(drafted) / max(len(drafted), 1)
                self._num_choices += 1
                self._num_chosen += (mean - self._num_chosen) / min(self._num_choices, _CHOICES)


def _power_of_2(number: int) -> int:
    """Return the least power of 2 that is no smaller; 1 for 0."""
    return 1 << max(number - 1, 0).bit_length()
