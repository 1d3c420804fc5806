"""How large the trees of a step are."""

from collections.abc import Sequence
from math import ceil

import numpy as np
from jaxtyping import Float

from specresearch.controllers.evidence import AskedStep

_LEAST = 4  # nodes of each level, if there is room for them
_SPARE = 1.5  # nodes to draft for each that is verified on average, in all and of a level
_FEW = 4  # requests below which choosing nodes takes longer than it saves


class TreeSize:
    """How many nodes a row drafts: enough to choose from by their scores, or as many as are chosen.

    Nodes of few requests are not chosen in every step, but until as many choices are known as are
    remembered, and then once a decision. In between a row drafts the number that was chosen, or
    what it finds: a lookup finds many nodes in few steps.

    Args:
        memory: Choices that have to be known.
        finds_depth: Trees find their depth, see `DraftKind`.

    Attributes:
        width: Nodes of a level to expand.
        chooses: Nodes are chosen in this step.
    """

    def __init__(self, memory: float, *, finds_depth: bool = False) -> None:
        self.width, self.chooses = _power_of_2(ceil(_SPARE)), True
        self._memory, self._finds_depth, self._num_choices = memory, finds_depth, 0
        self._num_drafts = self._num_chosen = 0

    def num_nodes(self, num_rows: int, depth: int, *, is_new: bool) -> int:
        """Return the nodes that each row may draft in the next step.

        Args:
            num_rows: The requests in the batch.
            depth: The levels of the deepest draft.
            is_new: Depths were decided for this step.
        """
        is_known = self._num_choices >= self._memory
        self.chooses = num_rows >= _FEW or is_new or not is_known
        if not (self.chooses or self._finds_depth):
            return max(self._num_chosen, 1)
        # The powers of 2 alone, since graphs on a GPU are made for each number.
        return _power_of_2(max(_LEAST * depth, self._num_drafts))

    def expect(self, nodes: Float[np.ndarray, " K"]) -> None:
        """Leave room for more than the nodes of each level that are verified on average."""
        self.width = _power_of_2(ceil(_SPARE * nodes.max(initial=1.0)))
        self._num_drafts = ceil(_SPARE * nodes.sum())

    def observe(self, steps: Sequence[AskedStep]) -> None:
        """Learn from what was chosen, the newest step last."""
        for step in steps:
            if step.chosen is not None:
                drafted = [number for number in step.record.num_draft_tokens if number]
                self._num_choices += 1
                self._num_chosen = round(sum(drafted) / max(len(drafted), 1))


def _power_of_2(number: int) -> int:
    """Return the least power of 2 that is no smaller."""
    return 1 << max(number - 1, 0).bit_length()
