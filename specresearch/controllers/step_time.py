"""How long a step takes given how much is drafted, learned from the steps of the current run."""

from dataclasses import dataclass

from specresearch.controllers.window_fit import WindowFit
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast

_TOKENS, _CONTEXT = 16.0, 16_000.0  # units that make features about as large as the constant
_FORESEEN = "foreseen"  # the kind of the steps that were measured before the run
_MIN_SECONDS = 1e-9  # a fit may know nothing of plain steps


@dataclass(frozen=True)
class DraftCosts:
    """Seconds that drafts add to a step.

    Attributes:
        any: If anything is drafted.
        level: A level of the deepest draft: a pass of a drafter with a model.
        row_level: A level of one row.
        node: A node that is verified.
    """

    any: float
    level: float
    row_level: float
    node: float


class StepTime:
    """Two fits, in seconds, that add up to a step, with the controller's own time in it.

    - draft: a constant, another one if anything is drafted, levels, and levels x rows that draft.
    - rest: a constant, another one if anything is drafted, rows, nodes, and context.

    Times do not depend on padding: the target packs the nodes of all rows. The first step after a
    change of depth is left out: anything may be slow at first. Steps of few and of many nodes are
    remembered apart, else those of one size would soon be all, which do not tell what a node costs.

    Args:
        memory: Steps after which an old one counts 1/e.
    """

    def __init__(self, memory: float) -> None:
        self.draft = WindowFit(4, memory)
        self.rest = WindowFit(5, memory)
        self._last_depth = -1
        self._has_drafted = False  # since the last solution

    def foresee(self, forecast: DraftForecast) -> None:
        """Take note of what was measured before the run."""
        rows = forecast.num_rows
        for depth, seconds in forecast.draft_seconds:
            x = [1.0, float(depth > 0), float(depth), depth * rows / _TOKENS]
            self.draft.observe(_FORESEEN, x, seconds)
        for num_nodes, seconds in forecast.rest_seconds:
            x = [1.0, float(num_nodes > 0), rows / _TOKENS, num_nodes / _TOKENS, 0.0]
            self.rest.observe(_FORESEEN, x, seconds)
        self._has_drafted = True

    def costs(self) -> DraftCosts:
        _, any_draft, per_level, per_row_level = self.draft.weights
        _, any_node, _, per_node, _ = self.rest.weights
        return DraftCosts(
            any_draft + any_node, per_level, per_row_level / _TOKENS, per_node / _TOKENS
        )

    def plain(self, num_rows: int, context: int) -> float:
        """Return the seconds of a step without drafts."""
        rest, _, per_row, _, per_context = self.rest.weights
        alone = self.draft.weights[0] + rest
        seconds = alone + per_row * num_rows / _TOKENS + per_context * context / _CONTEXT
        return max(seconds, _MIN_SECONDS)

    def observe(self, record: StepRecord, depth: int, num_drafting: int) -> dict[str, float]:
        """Take note of a step; return the prior estimates of its two parts, by name.

        Args:
            depth: The levels that were asked for.
            num_drafting: The rows that were asked to draft.
        """
        any_draft = float(depth > 0)
        self._has_drafted |= depth > 0 or not self.draft.weights[0]
        num_rows, num_nodes = len(record.request_ids), sum(record.num_draft_tokens)
        draft = [1.0, any_draft, float(depth), depth * num_drafting / _TOKENS]
        rest = [1.0, any_draft, num_rows / _TOKENS, num_nodes / _TOKENS]
        rest.append(sum(record.context) / _CONTEXT)
        times = record.times
        estimates = {"draft": self.draft.predict(draft), "rest": self.rest.predict(rest)}
        if depth == self._last_depth:
            self.draft.observe(depth, draft, times.propose)
            self.rest.observe(num_nodes.bit_length(), rest, times.total - times.propose)
        self._last_depth = depth
        return estimates

    def solve(self) -> None:
        """Let the estimates follow the steps since the last call."""
        if self._has_drafted:
            self.draft.solve()
            self._has_drafted = False
        self.rest.solve()
