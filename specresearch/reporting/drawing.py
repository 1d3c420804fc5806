"""How figures look: one small size that a phone can show, colours that follow the page's light or dark scheme."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import Container
from matplotlib.figure import Figure

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
LEGEND_WIDTH, HANDLE, MOST_COLUMNS, LEGEND_ROW = (
    62,
    6,
    4,
    0.2,
)  # characters, characters, columns, inches
RESOLUTION = 160  # dots per inch of PNG files


@dataclass(frozen=True)
class Table:
    """header: of the columns, the first of which names the rows. rows: words and numbers as they are shown."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A figure with what stands for it where it cannot be seen. name: of its file. alt: what it shows, with its main numbers."""

    name: str
    title: str
    caption: str
    alt: str
    table: Table
    svg: str = field(repr=False)
    png: bytes = field(repr=False)

    def save(self, folder: Path) -> None:
        (folder / f"{self.name}.png").write_bytes(self.png)


def picture(
    name: str,
    title: str,
    caption: str,
    alt: str,
    table: Table,
    draw: Callable[[Figure], None],
    height: float = HEIGHT,
) -> Picture:
    """What `draw` puts on a figure, as SVG in the page's colours and as PNG on white."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        vector, pixels = io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(figure).print_svg(vector, metadata={"Date": None})
        FigureCanvasAgg(figure)
        figure.savefig(
            pixels, format="png", dpi=RESOLUTION, facecolor="white", metadata={"Software": None}
        )
    return Picture(
        name, title, caption, alt, table, _inline(vector.getvalue(), name, alt), pixels.getvalue()
    )


def _inline(svg: bytes, name: str, alt: str) -> str:
    """Fit for standing inside a page beside others: scalable, in the page's colours and font, with ids of its own."""
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
    text = re.sub(
        r' id="([\w.-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text
    )
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]+;?", "", text)
    return re.sub("|".join(VARIABLES), lambda m: VARIABLES[m[0]], text)


def legend_below(figure: Figure, handles: Sequence[Artist] | None = None) -> None:
    """All labelled series of the figure's axes, each once, or `handles`, under them in as many columns as fit. The figure grows
    by as much, so that the axes keep their size."""
    if handles is None:
        found = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        series = sorted(found, key=lambda label: not isinstance(found[label], Container))
    else:
        found = {str(handle.get_label()): handle for handle in handles}
        series = list(found)
    if not series:
        return
    num_columns = max(
        1, min(MOST_COLUMNS, len(series), LEGEND_WIDTH // (max(map(len, series)) + HANDLE))
    )
    num_rows = -(-len(series) // num_columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * num_rows)
    figure.legend(
        [found[label] for label in series], series, loc="outside lower center", ncols=num_columns
    )
