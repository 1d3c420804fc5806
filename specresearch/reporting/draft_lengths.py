"""How much to draft: what the controller chooses, and which fixed length was best."""

from collections.abc import Sequence

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.formatting import inline, listed
from specresearch.reporting.workload import BATCH


def draft_lengths(decision: Decision) -> tuple[tuple[str, ...], str]:
    """Return lines about the draft length, and the command that compares others or ""."""
    setting = decision.setting
    lines = [] if setting.is_fixed else [_chosen(decision)]
    measured = _lengths(decision.fixed_points)
    if len(measured) > 1:
        lines.append(f"Of the fixed lengths {listed(measured)}, {_best(decision)}")
        return tuple(lines), ""
    if not setting.is_fixed or setting.length is None:
        return tuple(lines), ""
    lines.append(f"{setting.length}, the only one measured. To compare others, add")
    is_batch = decision.axis == BATCH
    return tuple(lines), "-m proposer.num_draft_tokens=2,4,8" if is_batch else '"compare=[2,4,8]"'


def _lengths(points: Sequence[Comparison]) -> list[str]:
    lengths = {point.setting.length for point in points if point.setting.length}
    return [str(length) for length in sorted(lengths)]


def _chosen(decision: Decision) -> str:
    """Return how much the controller drafts on average."""
    averages = []
    for point in decision.points:
        length = point.speculative.value("mean_draft_length")
        if length is not None:
            averages.append(f"{length:.1f} at {point.load.amount_label}")
    words = f": on average {listed(averages)} {decision.unit}" if averages else ""
    return f"The controller chooses{words}."


def _best(decision: Decision) -> str:
    best = []
    for load in decision.loads:
        point = decision.best_fixed(load)
        if point is not None:
            best.append(f"{point.setting.length} at {load.amount_label} ({inline(point.gain)})")
    return f"best in hindsight: {listed(best)}.{_ties(decision)}"


def _ties(decision: Decision) -> str:
    """Return which lengths cannot be told from the best at the lowest load."""
    load = decision.loads[0]
    best = decision.best_fixed(load)
    if best is None or best.gain is None or best.gain.low is None:
        return ""
    ties = []
    for point in decision.fixed_points:
        is_other = point.load == load and point.setting.length != best.setting.length
        if is_other and point.gain and (point.gain.high or point.gain.value) >= best.gain.low:
            ties.append(point)
    if not ties:
        return ""
    words = listed(_lengths(ties))
    return f" At {load.amount_label}, {words} cannot be told from {best.setting.length}."
