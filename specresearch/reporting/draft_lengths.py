"""How much to draft: what the controller chooses, and which fixed length was best."""

from collections.abc import Sequence

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.finding import Finding
from specresearch.reporting.formatting import inline, interval, listed, seconds
from specresearch.reporting.next_steps import other_lengths
from specresearch.reporting.tails import ends

OVER_BEST = "throughput over the better of plain decoding and the best fixed length"


def draft_length(decision: Decision) -> Finding:
    """Return what there is to say of the draft length; no lines if nothing."""
    setting = decision.setting
    lines = [] if setting.is_fixed else [_chosen(decision), *_controller(decision)]
    measured = _lengths(decision.fixed_points)
    command = ""
    if len(measured) > 1:
        lines.append(f"Of the fixed lengths {listed(measured)}, {_best(decision)}")
    elif setting.is_chain_length and setting.length is not None:
        lines.append(f"{setting.length}, the only one measured.")
        command = other_lengths(decision.points[0])
        if command:
            lines.append("To compare others:")
    return Finding("Draft length", tuple(lines), command)


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


def _controller(decision: Decision) -> list[str]:
    """Return how well the controller chose, and how well it estimated."""
    lines = []
    for point in ends(decision.points):
        at = f"At {point.load.label}"
        if point.over_best is not None:
            lines.append(f"{at}, {OVER_BEST}: {interval(point.over_best)}.")
        if point.step_seconds is not None:
            estimated, measured = map(seconds, point.step_seconds)
            lines.append(f"{at}, it estimated {estimated} for a step that took {measured}.")
    return lines


def _best(decision: Decision) -> str:
    best = []
    for load in decision.loads:
        point = decision.best_fixed(load)
        if point is not None:
            best.append(f"{point.setting.length} at {load.label} ({inline(point.gain)})")
    return f"best in hindsight: {listed(best)}."
