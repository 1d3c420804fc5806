"""Speedups by load and by draft length, drawn by one mechanism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import LATENCY, THROUGHPUT
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import (
    COLOURS,
    MARKERS,
    PAGE,
    PLAIN,
    TEXT,
    Canvas,
    Picture,
    TextTable,
    error_bars,
)
from specresearch.reporting.formatting import interval
from specresearch.reporting.workload import Load

BASES = {
    LATENCY: "plain decoding's mean time from arrival to last token over the method's",
    THROUGHPUT: "tokens per second over plain decoding's",
}
DODGE = 0.06  # between the points of two lines, as a share of the distance between ticks
LOWEST, HIGHEST = 0.9, 1.1  # keep the line at 1 in sight
MOST_REACH = 1.5  # of the axis, as a multiple of the largest speedup
MOST_ROWS = 24  # of a chart
LINE_WIDTH = 74  # characters of the chart's width
LINE_HEIGHT, POINT_HEIGHT = 0.16, 0.22  # inches


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        colour: Its number; beyond the last colour, lines are grey.
        gains: Speedups by the label of the horizontal axis.
    """

    label: str
    colour: int
    gains: Mapping[str, Estimate]


def overview(decisions: Sequence[Decision], name: str) -> list[Picture]:
    """Return a chart for each kind of load of a workload, all with the same axis of speedups.

    What was measured at one load only is drawn in rows of one chart, if there are several.
    """
    colours: dict[str, int] = {}
    charts = [(decision, _by_method(decision, colours)) for decision in decisions]
    limits = _reach([line for _, series in charts for line in series])
    pictures, single = [], []
    for decision, series in charts:
        if len(decision.loads) == 1:
            single += [(decision.points[0].scene, line) for line in series]
            continue
        bases = {point.basis for point in decision.points}
        basis = "; overloaded: ".join(words for basis, words in BASES.items() if basis in bases)
        picture = _chart(
            series,
            ticks=[load.amount_label for load in decision.loads],
            limits=limits,
            xlabel=decision.unit,
            title=f"{decision.workload.label}, by {decision.points[0].load.kind}",
            caption=f"Speedup is {basis}.",
            name=f"{name}-{len(pictures) + 1}",
        )
        pictures.append(picture)
    if len(single) > 1:
        pictures.append(_rows(single[:MOST_ROWS], limits, f"{name}-{len(pictures) + 1}"))
    return pictures


def by_length(decisions: Sequence[Decision], name: str) -> list[Picture]:
    """Return the speedup of the recommended methods' fixed draft lengths, a line for each load.

    Decisions with fewer than two lengths have no chart.
    """
    charts = [(decision, _by_load(decision)) for decision in decisions]
    charts = [(decision, series) for decision, series in charts if len(_lengths(series)) > 1]
    limits = _reach([line for _, series in charts for line in series])
    pictures = []
    for number, (decision, series) in enumerate(charts, start=1):
        picture = _chart(
            series,
            ticks=[str(length) for length in _lengths(series)],
            limits=limits,
            xlabel="draft tokens per step, at most",
            title=f"{decision.setting.method}: {decision.workload.label}",
            caption="Speedup of fixed draft lengths. Lengths whose intervals overlap cannot be "
            "told apart.",
            name=f"{name}-{number}",
        )
        pictures.append(picture)
    return pictures


def _by_load(decision: Decision) -> list[Series]:
    by_load: dict[Load, dict[str, Estimate]] = {}
    for point in sorted(decision.fixed_points, key=lambda point: point.load):
        if point.setting.length is not None and point.gain is not None:
            by_load.setdefault(point.load, {})[str(point.setting.length)] = point.gain
    series = []
    for number, (load, gains) in enumerate(by_load.items()):
        series.append(Series(load.label, number, gains))
    return series


def _lengths(series: Sequence[Series]) -> list[int]:
    return sorted({int(length) for line in series for length in line.gains})


def _by_method(decision: Decision, colours: dict[str, int]) -> list[Series]:
    """Return a line for each method, the fastest first; new methods are added to the colours."""
    series = []
    for setting, points in decision.best_by_method.items():
        gains = {point.load.amount_label: point.gain for point in points if point.gain is not None}
        if gains:
            colour = colours.setdefault(setting.method, len(colours))
            series.append(Series(setting.label, colour, gains))
    return sorted(series, key=lambda line: -max(gain.value for gain in line.gains.values()))


def _reach(series: Sequence[Series]) -> tuple[float, float]:
    """Return the limits of an axis on which all of these are seen, and the line at 1.

    One very wide interval is cut, so that the others stay readable.
    """
    lows, highs, values = [LOWEST], [HIGHEST], [HIGHEST]
    for line in series:
        for gain in line.gains.values():
            low, high = gain.interval or (gain.value, gain.value)
            lows.append(low)
            highs.append(high)
            values.append(gain.value)
    top = min(max(highs), MOST_REACH * max(values))
    margin = 0.04 * (top - min(lows))
    return min(lows) - margin, top + margin


def _chart(
    series: Sequence[Series],
    *,
    ticks: Sequence[str],
    limits: tuple[float, float],
    xlabel: str,
    title: str,
    caption: str,
    name: str,
) -> Picture:
    canvas = Canvas()
    axes = canvas.subplots()
    words = []
    for number, line in enumerate(series):
        shift = DODGE * (number - (len(series) - 1) / 2)
        has_colour = line.colour < len(COLOURS)
        looks: dict[str, Any] = {
            "color": COLOURS[line.colour] if has_colour else PLAIN,
            "marker": MARKERS[line.colour % len(MARKERS)],
        }
        drawn = [(tick, line.gains[tick]) for tick in ticks if tick in line.gains]
        xs = [ticks.index(tick) + shift for tick, _ in drawn]
        values = [gain.value for _, gain in drawn]
        axes.plot(xs, values, label=line.label, markerfacecolor=PAGE, **looks)
        for x, (_, gain) in zip(xs, drawn, strict=True):
            if gain.has_interval:  # fills the point, too
                axes.errorbar([x], [gain.value], yerr=error_bars([gain]), **looks)
        values_in_words = [f"{tick}: {interval(gain)}" for tick, gain in drawn]
        words.append(f"{line.label}, {', '.join(values_in_words)}")
    axes.axhline(1, color=TEXT, linewidth=1, linestyle="--", zorder=1)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set(xlim=(-0.3, len(ticks) - 0.7), ylim=limits, xlabel=xlabel, ylabel="speedup")
    rows = [[tick, *(interval(line.gains.get(tick)) for line in series)] for tick in ticks]
    return canvas.picture(
        name,
        title=title,
        caption=caption,
        alt=f"{title}: speedup by {xlabel}. {'; '.join(words)}.",
        table=TextTable([xlabel, *(line.label for line in series)], rows),
    )


def _rows(lines: Sequence[tuple[str, Series]], limits: tuple[float, float], name: str) -> Picture:
    """Return a row for each line, which was measured at the load that stands beside it."""
    is_one_scene = len({scene for scene, _ in lines}) == 1
    names = []
    for scene, line in lines:
        name_of_line = line.label if is_one_scene else f"{line.label}; {scene}"
        names.append(wrap(name_of_line, LINE_WIDTH))
    height = sum(LINE_HEIGHT * len(words) + POINT_HEIGHT for words in names)
    canvas = Canvas(0.5 + height)
    axes = canvas.subplots()
    hides_grid = {"facecolor": PAGE, "edgecolor": "none", "pad": 0.5}
    rows = []
    top = 0.0  # inches below the top of the axes
    # Names stand above their points: beside them, a long one would leave the axes no room.
    for words, (scene, line) in zip(names, lines, strict=True):
        (gain,) = line.gains.values()
        axes.text(
            x=0,
            y=top,
            s="\n".join(words),
            transform=axes.get_yaxis_transform(),
            va="top",
            fontsize="small",
            bbox=hides_grid,
        )
        at = top + LINE_HEIGHT * len(words) + POINT_HEIGHT / 2
        axes.plot([gain.value], [at], marker="o", color=COLOURS[0], markerfacecolor=PAGE)
        if gain.has_interval:
            axes.errorbar([gain.value], [at], xerr=error_bars([gain]), marker="o", color=COLOURS[0])
        top = at + POINT_HEIGHT / 2
        rows.append([f"{line.label}; {scene}", interval(gain)])
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", zorder=1)
    axes.set_yticks([])
    axes.set(xlim=limits, ylim=(top, 0), xlabel="speedup")
    axes.spines.left.set_visible(False)
    return canvas.picture(
        name,
        title=lines[0][0] if is_one_scene else "Measured at one load",
        caption="Right of the line at 1 is faster.",
        alt=f"Speedup at one load. {'; '.join(': '.join(row) for row in rows)}.",
        table=TextTable(["Setting", "Speedup"], rows),
    )
