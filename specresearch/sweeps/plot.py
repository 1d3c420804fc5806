"""The plot of a multirun: what was swept against what came of it."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

Row = Mapping[str, Any]
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)  # told apart by colour-blind readers too
GREY = "#767676"
NAMES = ("method", "controller")
LABELS = {
    "speedup": "throughput / plain decoding's",
    "e2el_p50_ratio": "median latency / plain decoding's",
}
FIXED = "fixed draft lengths"
LOG_FROM = 8.0  # ratio of the largest to the smallest value of what was swept


def plot_sweep(rows: Sequence[Row], file: Path) -> bool:
    """Draws `file`; False where nothing that was swept is a number, or no job has a speedup.

    Speedup over plain decoding with its interval. Of load runs: throughput, or where requests come by themselves the median
    latency, and the 99th percentile of TPOT, all over plain decoding's, and fixed draft lengths beside the controller.
    """
    rows = [row for row in rows if row.get("speedup") is not None]
    axis = _axis(rows)
    if axis is None:
        return False
    is_load = any(row.get("kind") == "load" for row in rows)
    is_open = is_load and any(row.get("concurrency") is None for row in rows)
    main, of_sides = ("e2el_p50_ratio", "e2el_p50") if is_open else ("speedup", "throughput")
    figure = Figure(figsize=(7, 6.5 if is_load else 4), layout="constrained")
    axes = figure.subplots(2 if is_load else 1, 1, sharex=True, squeeze=False)[:, 0]
    for colour, (name, series) in zip(_repeat(COLOURS), _series(rows, axis).items(), strict=False):
        series = sorted(series, key=lambda row: _value(row, axis))
        places = [_value(row, axis) for row in series]
        _draw(axes[0], places, series, main, colour, name)
        if is_load:
            _draw(axes[1], places, series, "tpot_p99_ratio", colour, name)
            _draw_fixed(axes[0], places, series, of_sides, colour)
            _draw_fixed(axes[1], places, series, "tpot_p99", colour)
    _finish(axes[0], LABELS[main] if is_load else "speedup over plain decoding")
    if is_load:
        _finish(axes[1], "P99 TPOT / plain decoding's")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False)
    values = sorted({_value(row, axis) for row in rows})
    if values[0] > 0 and values[-1] / values[0] >= LOG_FROM:
        axes[-1].set_xscale("log", base=2)
        axes[-1].xaxis.set_minor_locator(NullLocator())
    axes[-1].set_xticks(values)
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[-1].set_xlabel(axis.rpartition(".")[2].replace("_", " "))
    figure.savefig(file, dpi=150)
    return True


def _overrides(row: Row) -> dict[str, str]:
    return dict(
        word.removeprefix("+").split("=", 1) for word in row["overrides"].split() if "=" in word
    )


def _axis(rows: Sequence[Row]) -> str | None:
    """The swept setting with the most values that are all numbers."""
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in _overrides(row).items():
            values[key].add(value)
    numeric = {
        key: len(found)
        for key, found in values.items()
        if len(found) > 1 and all(map(_is_number, found))
    }
    return max(numeric, key=lambda key: numeric[key], default=None)


def _series(rows: Sequence[Row], axis: str) -> dict[str, list[Row]]:
    """By what else was swept."""
    shared = set.intersection(*(set(_overrides(row).items()) for row in rows))
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rest = {
            key: value
            for key, value in _overrides(row).items()
            if key != axis and (key, value) not in shared
        }
        words = [
            value if "." not in key else f"{key.rpartition('.')[2]} {value}"
            for key, value in rest.items()
        ]
        found[
            " ".join(words) or " with ".join(str(row[key]) for key in NAMES if row.get(key))
        ].append(row)
    return found


def _draw(
    axes: Axes, places: Sequence[float], rows: Sequence[Row], figure: str, colour: str, name: str
) -> None:
    kept = [
        (place, row) for place, row in zip(places, rows, strict=True) if row.get(figure) is not None
    ]
    xs, ys = [place for place, _ in kept], [row[figure] for _, row in kept]
    below = [y - (row.get(f"{figure}_ci95_low") or y) for y, (_, row) in zip(ys, kept, strict=True)]
    above = [
        (row.get(f"{figure}_ci95_high") or y) - y for y, (_, row) in zip(ys, kept, strict=True)
    ]
    errors = [[max(error, 0.0) for error in side] for side in (below, above)]
    axes.errorbar(
        xs, ys, yerr=errors, color=colour, marker="o", markersize=4, capsize=3, label=name or None
    )


def _draw_fixed(
    axes: Axes, places: Sequence[float], rows: Sequence[Row], figure: str, colour: str
) -> None:
    """Fixed draft lengths, thin, with their length at the end of the line."""
    names = sorted(
        {key for row in rows for key in row if re.fullmatch(rf"{figure}_fixed-\d+", key)}
    )
    for name in names:
        kept = [
            (place, row[name] / row[f"baseline_{figure}"])
            for place, row in zip(places, rows, strict=True)
            if row.get(name) and row.get(f"baseline_{figure}")
        ]
        if kept:
            axes.plot(
                *zip(*kept, strict=True),
                color=colour,
                linewidth=0.8,
                linestyle=":",
                alpha=0.8,
                label=FIXED if name == names[0] else None,
            )
            axes.annotate(
                name.rpartition("-")[2],
                kept[-1],
                (4, 0),
                textcoords="offset points",
                fontsize=7,
                color=colour,
                va="center",
            )


def _finish(axes: Axes, label: str) -> None:
    axes.axhline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _repeat(values: Sequence[str]) -> Any:
    while True:
        yield from values


def _value(row: Row, axis: str) -> float:
    return float(_overrides(row)[axis])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
