"""How figures look: one size for phones, in colours that follow the page's light or dark scheme."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from specresearch.bench.estimate import Estimate

STYLE = Path(__file__).with_name("report.mplstyle")  # in force while a report is drawn
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
LEGEND_WIDTH, HANDLE = 62, 6  # characters
MOST_COLUMNS = 4
LEGEND_ROW = 0.2  # inches


@dataclass(frozen=True)
class TextTable:
    """A table of words and numbers as they are shown.

    Attributes:
        header: Names of the columns; the first column names the rows.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure, and what stands for it where it cannot be seen.

    Attributes:
        name: Of its file.
        alt: What it shows, with its main numbers.
        table: Its numbers; None if its section has them.
    """

    name: str
    title: str
    caption: str
    alt: str
    table: TextTable | None
    svg: str = field(repr=False)
    png: bytes = field(repr=False)


class Canvas(Figure):
    """A figure to draw on, which becomes a picture."""

    def __init__(self, height: float | None = None) -> None:
        super().__init__()
        if height is not None:
            self.set_figheight(height)

    def picture(
        self, name: str, *, title: str, caption: str, alt: str, table: TextTable | None
    ) -> Picture:
        """Return the figure as SVG in the page's colours and as PNG on white."""
        self._add_legend()
        vector, pixels = io.BytesIO(), io.BytesIO()
        with rc_context({"svg.hashsalt": name}):  # makes ids unique within a page
            FigureCanvasSVG(self).print_svg(vector, metadata={"Date": None})
        FigureCanvasAgg(self)
        self.savefig(pixels, format="png", metadata={"Software": None})
        svg = _inline(vector.getvalue().decode(), alt)
        return Picture(name, title, caption, alt, table, svg=svg, png=pixels.getvalue())

    def _add_legend(self) -> None:
        """Put a legend of the labelled series under the axes, in as many columns as fit.

        The figure grows by as much, so that the axes keep their size.
        """
        series: dict[str, Any] = {}
        for axes in self.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                series.setdefault(label, handle)
        if not series:
            return
        width = max(map(len, series)) + HANDLE
        num_columns = max(1, min(MOST_COLUMNS, len(series), LEGEND_WIDTH // width))
        num_rows = -(-len(series) // num_columns)
        self.set_figheight(self.get_figheight() + LEGEND_ROW * num_rows)
        handles, labels = list(series.values()), list(series)
        self.legend(handles, labels, loc="outside lower center", ncols=num_columns)


def error_bars(estimates: Sequence[Estimate]) -> Float[np.ndarray, "2 n"]:
    """Return the lengths of error bars, 0 where there is no interval."""
    down, up = [], []
    for estimate in estimates:
        low, high = estimate.interval or (estimate.value, estimate.value)
        down.append(estimate.value - low)
        up.append(high - estimate.value)
    return np.array([down, up]).clip(min=0)


def _inline(svg: str, alt: str) -> str:
    """Return an SVG that stands inside a page: scalable, in the page's colours and font."""
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<(metadata|style).*?</\1>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing refers to these, and they are not unique
    svg = re.sub(r"font-family: [^;\"]+;?", "", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return re.sub("|".join(VARIABLES), lambda match: VARIABLES[match[0]], svg)
