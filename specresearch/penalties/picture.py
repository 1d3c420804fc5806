"""Draw acceptance and speed of every draft against the bytes that it reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specresearch.files import written_whole
from specresearch.penalties.folder import PenaltyResults
from specresearch.penalties.summary import POINTS

PICTURE = "penalty.png"
PANELS = {"acceptance": "acceptance of a draft token", "speedup": "speed over plain decoding"}


def save_picture(results: PenaltyResults, folder: Path) -> None:
    """Write penalty.png: a row of panels for each temperature, a line for each target."""
    cells = results.summary["cells"]
    temperatures = sorted({cell["temperature"] for cell in cells})
    figure = Figure(figsize=(10, 3.6 * len(temperatures)), layout="constrained")
    axes = figure.subplots(len(temperatures), len(PANELS), squeeze=False)
    for row, temperature in zip(axes, temperatures, strict=True):
        here = [cell for cell in cells if cell["temperature"] == temperature]
        for axis, (name, label) in zip(row, PANELS.items(), strict=True):
            _draw(axis, here, name)
            axis.set_title(f"temperature {temperature:g}")
            axis.set_ylabel(label)
            axis.set_xlabel("weights that a draft token reads, MB")
        row[0].legend(title="target")
        row[1].axhline(1.0, color="gray", linewidth=0.8)
    with written_whole(folder / PICTURE) as part:
        figure.savefig(part, format="png", dpi=120)


def _draw(axis: Axes, cells: Sequence[Mapping[str, Any]], name: str) -> None:
    for number, target in enumerate(dict.fromkeys(cell["target"] for cell in cells)):
        points = [cell for cell in cells if cell["target"] == target and cell.get(name)]
        if not points:
            continue
        points.sort(key=lambda cell: cell["read_bytes"])
        x = [cell["read_bytes"] / 1e6 for cell in points]
        y = [cell[name] for cell in points]
        ends = [cell.get(f"{name}_ci95") or (cell[name], cell[name]) for cell in points]
        errors = [
            [max(value - low, 0.0) for value, (low, _) in zip(y, ends, strict=True)],
            [max(high - value, 0.0) for value, (_, high) in zip(y, ends, strict=True)],
        ]
        color = f"C{number}"
        axis.errorbar(x, y, yerr=errors, marker="o", capsize=3, label=target, color=color)
        for cell, left, top in zip(points, x, y, strict=True):
            axis.annotate(cell["draft"], (left, top), xytext=(4, 4), textcoords="offset points")
        if name == "acceptance":
            _draw_rule(axis, cells, target, color)


def _draw_rule(axis: Axes, cells: Sequence[Mapping[str, Any]], target: str, color: str) -> None:
    """Draw how low the rule of thumb lets acceptance fall."""
    first = next(cell for cell in cells if cell["target"] == target)
    axis.axhline(first["acceptance"] - POINTS / 100, color=color, linestyle=":", linewidth=1)
