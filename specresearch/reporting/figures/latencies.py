"""Latencies of the baseline and of the method at every load, with the user's limit."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from specresearch.reporting.comparisons import Comparison, Side
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import (
    COLOURS,
    PLAIN,
    TEXT,
    Picture,
    Table,
    draw_picture,
    legend_below,
)
from specresearch.reporting.formatting import (
    loads_listed,
    seconds,
    seconds_with_interval,
    time_scale,
)
from specresearch.reporting.limits import Limits

PERCENTS = {50: "o", 90: "_", 99: "^"}  # their markers
TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between tokens",
    "e2el": "Time to the last token",
}
MEANINGS = {
    "ttft": "from a request's arrival to its first token, waiting included",
    "tpot": "a request's time after its first token, per token",
    "itl": "between two tokens as delivered; speculation delivers several at once, then pauses "
    "for longer",
    "e2el": "from a request's arrival to its last token, waiting included",
}
LOGARITHMIC_FROM = 30.0  # largest over smallest
COLOURS_OF_SIDES = (PLAIN, COLOURS[0])
HEADER = ("Load", *(f"{side}, P{p}" for side in ("plain", "method") for p in PERCENTS))


def latencies(decision: Decision, metric: str, limits: Limits, name: str) -> Picture | None:
    """Return the percentiles of a latency.

    Loads with which neither side keeps up are left out. Returns None if a side lacks the figures.
    """
    names = [f"{metric}_p{percent}" for percent in PERCENTS]
    lost = [point.load for point in decision.points if point.comparison.both_overloaded]
    shown: list[Comparison] = []
    for point in decision.points:
        sides = point.comparison.sides
        is_known = all(side[key] is not None for side in sides for key in names)
        if is_known and not point.comparison.both_overloaded:
            shown.append(point.comparison)
    if not shown:
        return None
    rows, changes, has_intervals = [], [], False
    for comparison in shown:
        cells = []
        for side in comparison.sides:
            estimates = [side[key] for key in names]
            cells += [seconds_with_interval(estimate) for estimate in estimates]
            has_intervals |= any(at is not None and at.has_interval for at in estimates)
        rows.append((comparison.load.label, *cells))
        changes.append(_change(comparison, names[0], names[-1]))
    intervals = " The table has the intervals." if has_intervals else ""
    left_out = ""
    if lost:
        left_out = f" Neither side keeps up with {loads_listed(lost)}, which is left out."
    limit = getattr(limits, metric, None)
    unit = shown[0].load.unit
    return draw_picture(
        name,
        title=f"{metric.upper()}: {decision.workload.label}",
        caption=f"{TITLES[metric]}: {MEANINGS[metric]}.{intervals}{left_out}",
        alt=f"{TITLES[metric]} by {unit} on {decision.workload.label}. {'; '.join(changes)}.",
        table=Table(HEADER, tuple(rows)),
        draw=lambda canvas: _draw(canvas, shown, metric, limit),
    )


def _change(comparison: Comparison, median: str, slowest: str) -> str:
    words = []
    for label, key in (("median", median), ("P99", slowest)):
        before, after = (seconds(side.value(key)) for side in comparison.sides)
        words.append(f"{label} {before} became {after}")
    return f"{comparison.load.amount_label}: {', '.join(words)}"


def _values(side: Side, metric: str) -> list[float]:
    values = [side.value(f"{metric}_p{percent}") for percent in PERCENTS]
    return [value for value in values if value is not None]


def _draw(canvas: Figure, shown: Sequence[Comparison], metric: str, limit: float | None) -> None:
    axes = canvas.subplots()
    everything = [v for c in shown for side in c.sides for v in _values(side, metric)]
    scale, unit = time_scale(max(everything))
    for column, comparison in enumerate(shown):
        for side, offset, colour in zip(
            comparison.sides, (-0.13, 0.13), COLOURS_OF_SIDES, strict=True
        ):
            values = [value * scale for value in _values(side, metric)]
            _draw_percentiles(axes, column + offset, values, colour)
    if limit is not None:
        axes.axhline(limit * scale, color=TEXT, linewidth=1, linestyle=":")
    axes.set_xticks(range(len(shown)), [comparison.load.amount_label for comparison in shown])
    margin = 0.6 if len(shown) > 1 else 0.9
    axes.set_xlim(-margin, len(shown) - 1 + margin)
    axes.grid(visible=False, axis="x")
    _set_scale(axes, min(everything) * scale)
    axes.set_xlabel(shown[0].load.unit)
    axes.set_ylabel(f"{metric.upper()}, {unit}")
    legend_below(canvas, _handles(shown[0].policy.label, limit))


def _draw_percentiles(axes: Axes, x: float, values: Sequence[float], colour: str) -> None:
    axes.plot([x, x], [min(values), max(values)], color=colour, linewidth=2.2, alpha=0.55)
    for value, marker in zip(values, PERCENTS.values(), strict=True):
        size = 8 if marker == "_" else 5.5
        axes.plot([x], [value], marker=marker, color=colour, markersize=size, mew=2)


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


def _handles(policy: str, limit: float | None) -> list[Line2D]:
    handles = []
    for label, colour in zip(("plain decoding", policy), COLOURS_OF_SIDES, strict=True):
        handles.append(Line2D([], [], color=colour, linewidth=3, label=label))
    for percent, marker in PERCENTS.items():
        look = {"color": TEXT, "linestyle": "", "markersize": 6, "mew": 2}
        handles.append(Line2D([], [], marker=marker, label=f"P{percent}", **look))
    if limit is not None:
        label = f"limit, {seconds(limit)}"
        handles.append(Line2D([], [], color=TEXT, linestyle=":", label=label))
    return handles
