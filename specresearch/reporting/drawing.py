"""How figures look: one small size that a phone can show, colours that follow the page's light or dark scheme."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import Container
from matplotlib.figure import Figure

from specresearch.bench.estimate import Estimate

WIDTH, HEIGHT = 4.7, 2.5  # inches, without the legend
TEXT, GRID, PAGE = "#1b1d22", "#d9dce3", "#fefefe"
PLAIN = "#6b7280"
COLOURS = ("#0a63b8", "#c4530a", "#17804d", "#8b3fb5", "#a06a00", "#b3275f", "#00808a")
MARKERS = "osD^vPX"
VARIABLES = {
    TEXT: "currentColor",
    GRID: "var(--grid)",
    PAGE: "var(--page)",
    PLAIN: "var(--plain)",
} | {colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specresearch",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "errorbar.capsize": 2.5,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
LEGEND_WIDTH, HANDLE = 62, 6  # characters
MOST_COLUMNS = 4
LEGEND_ROW = 0.2  # inches
RESOLUTION = 160  # dots per inch of PNG files


@dataclass(frozen=True)
class Table:
    """A table of words and numbers as they are shown.

    Attributes:
        header: Names of the columns; the first column names the rows.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A figure, and what stands for it where it cannot be seen.

    Attributes:
        name: Of its file.
        alt: What it shows, with its main numbers.
    """

    name: str
    title: str
    caption: str
    alt: str
    table: Table
    svg: str = field(repr=False)
    png: bytes = field(repr=False)

    def save(self, folder: Path) -> None:
        """Write the PNG file."""
        (folder / f"{self.name}.png").write_bytes(self.png)


def draw_picture(
    name: str,
    *,
    title: str,
    caption: str,
    alt: str,
    table: Table,
    draw: Callable[[Figure], None],
    height: float = HEIGHT,
) -> Picture:
    """Return a figure as SVG in the page's colours and as PNG on white.

    Args:
        draw: Draws the figure.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        vector, pixels = io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(figure).print_svg(vector, metadata={"Date": None})
        FigureCanvasAgg(figure)
        looks = {"dpi": RESOLUTION, "facecolor": "white", "metadata": {"Software": None}}
        figure.savefig(pixels, format="png", **looks)
    svg = _inline(vector.getvalue(), name, alt)
    return Picture(name, title, caption, alt, table, svg=svg, png=pixels.getvalue())


def _inline(svg: bytes, name: str, alt: str) -> str:
    """Return an SVG that stands inside a page beside others.

    It is scalable, has the page's colours and font, and ids of its own.
    """
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    for child in list(root):
        if child.tag == f"{{{SVG}}}metadata":
            root.remove(child)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{SVG}}}style":
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', text))

    def rename(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r' id="([\w.-]+)"', rename, text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]+;?", "", text)
    return re.sub("|".join(VARIABLES), lambda match: VARIABLES[match[0]], text)


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of a figure, the last of which is at height 0."""
    axes.set_yticks(range(len(labels)), list(reversed(labels)))
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.grid(visible=False, axis="y")


def error_bars(estimates: Sequence[Estimate]) -> Float[np.ndarray, "2 n"]:
    """Return the lengths of error bars, 0 where there is no interval."""
    down, up = [], []
    for estimate in estimates:
        low, high = estimate.interval or (estimate.value, estimate.value)
        down.append(estimate.value - low)
        up.append(high - estimate.value)
    return np.array([down, up]).clip(min=0)


def legend_below(figure: Figure, handles: Sequence[Artist] | None = None) -> None:
    """Put a legend under the axes, in as many columns as fit.

    The figure grows by as much, so that the axes keep their size.

    Args:
        handles: What the legend shows; None for the labelled series of all axes, each once.
    """
    if handles is None:
        series: dict[str, Any] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                series.setdefault(label, handle)
        labels = sorted(series, key=lambda label: not isinstance(series[label], Container))
    else:
        series = {str(handle.get_label()): handle for handle in handles}
        labels = list(series)
    if not labels:
        return
    width = max(map(len, labels)) + HANDLE
    num_columns = max(1, min(MOST_COLUMNS, len(labels), LEGEND_WIDTH // width))
    num_rows = -(-len(labels) // num_columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * num_rows)
    shown = [series[label] for label in labels]
    figure.legend(shown, labels, loc="outside lower center", ncols=num_columns)
