"""The plot of a multirun: speedup or latency against the setting that was swept."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

Row = Mapping[str, Any]
# distinct for colour-blind readers too
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY = "#767676"
NAMES = ("method", "controller")
LABELS = {
    "speedup": "throughput / plain decoding's\n(above 1 is faster)",
    "e2el_p50_ratio": "median latency / plain decoding's\n(below 1 is faster)",
}
FIXED = "fixed draft lengths"
LOG_FROM = 8.0  # ratio of the largest to the smallest swept value, for a logarithmic axis


def plot_sweep(rows: Sequence[Row], file: Path) -> bool:
    """Plot a sweep, if something numeric was swept.

    Shows speedup over plain decoding with its interval. For load runs it shows throughput, or with
    open arrivals the median latency, and the 99th percentile of TPOT, all relative to plain
    decoding, and fixed draft lengths beside the controller.

    Returns:
        False if no swept setting is a number, or no job has a speedup.
    """
    rows = [row for row in rows if row.get("speedup") is not None]
    setting = _axis(rows)
    if setting is None:
        return False
    series = _series(rows, setting)
    is_load = any(row.get("kind") == "load" for row in rows)
    if is_load:
        figure = _plot_load(series, setting)
    else:
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for colour, (name, points) in zip(cycle(COLOURS), series.items(), strict=False):
            _draw(axes, setting, points, "speedup", colour=colour, name=name)
        _decorate(axes, "speedup over plain decoding")
    top, bottom = figure.axes[0], figure.axes[-1]
    if top.get_legend_handles_labels()[1]:
        top.legend(frameon=False)
    _label_settings(bottom, sorted({_value(row, setting) for row in rows}))
    bottom.set_xlabel(setting.rpartition(".")[2].replace("_", " "))
    figure.savefig(file, dpi=150)
    return True


def _plot_load(series: Mapping[str, Sequence[Row]], setting: str) -> Figure:
    is_open = any(row.get("concurrency") is None for rows in series.values() for row in rows)
    metric, side_metric = "speedup", "throughput"
    if is_open:
        metric, side_metric = "e2el_p50_ratio", "e2el_p50"
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    for colour, (name, rows) in zip(cycle(COLOURS), series.items(), strict=False):
        _draw(top, setting, rows, metric, colour=colour, name=name)
        _draw(bottom, setting, rows, "tpot_p99_ratio", colour=colour, name=name)
        _draw_fixed(top, setting, rows, side_metric, colour=colour)
        _draw_fixed(bottom, setting, rows, "tpot_p99", colour=colour)
    _decorate(top, LABELS[metric])
    _decorate(bottom, "P99 TPOT / plain decoding's\n(below 1 is faster)")
    return figure


def _overrides(row: Row) -> dict[str, str]:
    words = [word for word in row["overrides"].split() if "=" in word]
    return dict(word.removeprefix("+").split("=", 1) for word in words)


def _axis(rows: Sequence[Row]) -> str | None:
    """Return the swept setting with the most values, if they are all numbers."""
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in _overrides(row).items():
            values[key].add(value)
    num_values = {}
    for key, options in values.items():
        if len(options) > 1 and all(map(_is_number, options)):
            num_values[key] = len(options)
    return max(num_values, key=lambda key: num_values[key], default=None)


def _series(rows: Sequence[Row], setting: str) -> dict[str, list[Row]]:
    """Group the rows by their other swept settings, each group in the order of the setting."""
    shared = set.intersection(*(set(_overrides(row).items()) for row in rows))
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        words = []
        for key, value in _overrides(row).items():
            if key != setting and (key, value) not in shared:
                words.append(f"{key.rpartition('.')[2]} {value}" if "." in key else value)
        names = [str(row[key]) for key in NAMES if row.get(key)]
        series[" ".join(words) or " with ".join(names)].append(row)
    for points in series.values():
        points.sort(key=lambda row: _value(row, setting))
    return series


def _draw(
    axes: Axes, setting: str, rows: Sequence[Row], metric: str, *, colour: str, name: str
) -> None:
    """Draw a metric with its intervals."""
    xs, ys, below, above = [], [], [], []
    for row in rows:
        y = row.get(metric)
        if y is None:
            continue
        xs.append(_value(row, setting))
        ys.append(y)
        below.append(max(y - (row.get(f"{metric}_ci95_low") or y), 0.0))
        above.append(max((row.get(f"{metric}_ci95_high") or y) - y, 0.0))
    axes.errorbar(
        xs,
        ys,
        yerr=[below, above],
        color=colour,
        marker="o",
        markersize=4,
        capsize=3,
        label=name or None,
    )


def _draw_fixed(axes: Axes, setting: str, rows: Sequence[Row], metric: str, *, colour: str) -> None:
    """Draw the fixed draft lengths as thin lines, with the length at the end of each."""
    keys = {key for row in rows for key in row if re.fullmatch(rf"{metric}_fixed-\d+", key)}
    label: str | None = FIXED
    for key in sorted(keys):
        points = []
        for row in rows:
            plain = row.get(f"baseline_{metric}")
            if row.get(key) and plain:
                points.append((_value(row, setting), row[key] / plain))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=0.8,
                linestyle=":",
                alpha=0.8,
                label=label,
            )
            axes.annotate(
                key.rpartition("-")[2],
                points[-1],
                (4, 0),
                textcoords="offset points",
                fontsize=7,
                color=colour,
                va="center",
            )
        label = None


def _decorate(axes: Axes, label: str) -> None:
    axes.axhline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _label_settings(axes: Axes, values: Sequence[float]) -> None:
    if values[0] > 0 and values[-1] / values[0] >= LOG_FROM:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _value(row: Row, setting: str) -> float:
    return float(_overrides(row)[setting])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
