"""Latencies of the baseline and of the method at every load, with the user's limit."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import COLOURS, PLAIN, TEXT, Canvas, Picture, TextTable
from specresearch.reporting.formatting import (
    loads_listed,
    seconds,
    seconds_with_interval,
    time_scale,
)
from specresearch.reporting.requirements import Requirements

PERCENTS = {50: "o", 90: "_", 99: "^"}  # their markers
MEANINGS = {
    "ttft": "Time to first token: from a request's arrival to its first token, waiting included",
    "tpot": "Time per output token: a request's time after its first token, per token",
    "itl": "Time between tokens: between two tokens as delivered; speculation delivers several at "
    "once, then pauses for longer",
    "e2el": "Time to the last token: from a request's arrival to its last token, waiting included",
}
LOGARITHMIC_FROM = 30.0  # largest over smallest
OFFSETS = (-0.13, 0.13)  # of the sides
HEADER = ["Load", *(f"{side}, P{p}" for side in ("plain", "method") for p in PERCENTS)]


def latencies(
    decision: Decision, metric: str, requirements: Requirements, name: str
) -> Picture | None:
    """Return the percentiles of a latency.

    Loads with which neither side keeps up are left out. Returns None if a side lacks the figures.
    """
    names = [f"{metric}_p{percent}" for percent in PERCENTS]
    lost = [point.load for point in decision.points if point.both_overloaded]
    shown = []
    for point in decision.points:
        is_known = all(side.figures.keys() >= set(names) for side in point.sides)
        if is_known and not point.both_overloaded:
            shown.append(point)
    if not shown:
        return None
    rows, changes, values, notes = [], [], [], ""
    for point in shown:
        estimates = [side.figures[key] for side in point.sides for key in names]
        rows.append([point.load.label, *(seconds_with_interval(each) for each in estimates)])
        values.append([estimate.value for estimate in estimates])
        changes.append(_change(point, names[0], names[-1]))
        if any(estimate.has_interval for estimate in estimates):
            notes = " The table has the intervals."
    if lost:
        notes += f" Neither side keeps up with {loads_listed(lost)}, which is left out."
    limit, title = getattr(requirements, metric, None), MEANINGS[metric].partition(":")[0]
    canvas = Canvas()
    axes = canvas.subplots()
    unit = _draw(axes, np.reshape(values, (len(shown), 2, -1)), decision.setting.label, limit)
    axes.set_xticks(range(len(shown)), [point.load.amount_label for point in shown])
    axes.set(xlabel=decision.unit, ylabel=f"{metric.upper()}, {unit}")
    return canvas.picture(
        name,
        title=f"{metric.upper()}: {decision.workload.label}",
        caption=f"{MEANINGS[metric]}.{notes}",
        alt=f"{title} by {decision.unit} on {decision.workload.label}. {'; '.join(changes)}.",
        table=TextTable(HEADER, rows),
    )


def _change(point: Comparison, median: str, slowest: str) -> str:
    words = []
    for label, key in (("median", median), ("P99", slowest)):
        before, after = (seconds(side.value(key)) for side in point.sides)
        words.append(f"{label} {before} became {after}")
    return f"{point.load.amount_label}: {', '.join(words)}"


def _draw(
    axes: Axes, values: Float[np.ndarray, "loads 2 percents"], setting: str, limit: float | None
) -> str:
    """Draw the percentiles of both sides, and return the unit."""
    scale, unit = time_scale(values.max())
    values = scale * values
    sides = {"plain decoding": PLAIN, setting: COLOURS[0]}
    for number, (label, colour) in enumerate(sides.items()):
        xs = np.arange(len(values)) + OFFSETS[number]
        lowest, highest = values[:, number].min(axis=1), values[:, number].max(axis=1)
        axes.vlines(xs, lowest, highest, color=colour, linewidth=2.2, alpha=0.55)
        for column, marker in enumerate(PERCENTS.values()):
            size = 8 if marker == "_" else 5.5
            axes.plot(xs, values[:, number, column], marker, color=colour, ms=size, mew=2)
        axes.plot([], [], color=colour, linewidth=3, label=label)
    for percent, marker in PERCENTS.items():
        axes.plot([], [], marker, color=TEXT, ms=6, mew=2, label=f"P{percent}")
    if limit is not None:
        label = f"limit, {seconds(limit)}"
        axes.axhline(limit * scale, color=TEXT, linewidth=1, linestyle=":", label=label)
    # A single load would otherwise fill the whole width.
    margin = 0.6 if len(values) > 1 else 0.9
    axes.set_xlim(-margin, len(values) - 1 + margin)
    axes.grid(visible=False, axis="x")
    _set_scale(axes, values.min())
    return unit


def _set_scale(axes: Axes, smallest: float) -> None:
    """Make the axis logarithmic if the values differ by much."""
    highest = axes.get_ylim()[1]
    if smallest <= 0 or highest / smallest <= LOGARITHMIC_FROM:
        axes.set_ylim(0, highest * 1.04)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
