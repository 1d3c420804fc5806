"""What a controller estimated, beside what came of it."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Trace
from specresearch.reporting.drawing import (
    COLOURS,
    PLAIN,
    Picture,
    Table,
    draw_picture,
    legend_below,
)
from specresearch.reporting.formatting import figure

MILLISECONDS = "ms a step"
PANELS = {
    MILLISECONDS: {"measured_seconds": "measured", "estimated_seconds": "estimated"},
    "acceptance": {"acceptance": "estimated acceptance"},
    "requests": {"num_requests": "running", "num_shut": "shut: no drafts for them"},
    "drafts a step": {"num_made": "drafts made", "num_verified": "drafts verified"},
}  # label of an axis -> figures of a row, and their words
REQUIRED = {
    MILLISECONDS: "measured_seconds",
    "acceptance": "acceptance",
    "requests": "num_shut",
    "drafts a step": "num_made",
}  # the figure without which a panel says nothing
MOST_ROWS = 40  # of the table

Row = Mapping[str, float]


def controller_estimates(trace: Trace, name: str) -> Picture | None:
    """Return a controller's own figures over the steps of every pass; None if it has none."""
    rows = trace.controller_estimates
    panels = []
    for label in PANELS:
        if any(REQUIRED[label] in row for row in rows):
            panels.append(label)
    if not panels:
        return None
    columns = {key: words for label in panels for key, words in PANELS[label].items()}
    means = []
    for key, words in columns.items():
        values = [value for value in (_value(row, key) for row in rows) if value is not None]
        means.append(f"{words} {figure(sum(values) / len(values) if values else None)}")
    passes = list(dict.fromkeys(row["repeat"] for row in rows))
    averages = f"{', '.join(means)}.{' Times are milliseconds.' if MILLISECONDS in panels else ''}"
    plural = "es" if len(passes) > 1 else ""
    return draw_picture(
        name,
        title=trace.scene,
        caption=f"What {trace.policy.label} reckoned with, averaged over stretches of steps, a "
        f"line for each of {len(passes)} pass{plural}. On average: {averages}",
        alt=f"What the controller reckoned with on {trace.workload.label} at {trace.load.label}, "
        f"on average: {averages}",
        table=_table(rows, columns),
        draw=lambda canvas: _draw(canvas, rows, panels, passes),
        height=0.5 + 1.1 * len(panels),
    )


def _value(row: Row, key: str) -> float | None:
    """Return a figure as it is drawn: times in milliseconds."""
    if key not in row:
        return None
    return 1e3 * row[key] if key in PANELS[MILLISECONDS] else row[key]


def _table(rows: Sequence[Row], columns: Mapping[str, str]) -> Table:
    every = -(-len(rows) // MOST_ROWS) or 1
    cells = []
    for row in rows[::every]:
        position = f"{row['repeat'] + 1:.0f}, {row['step']:.0f}"
        cells.append((position, *(figure(_value(row, key)) for key in columns)))
    names = [f"{words[0].upper()}{words[1:]}" for words in columns.values()]
    return Table(("Pass, step", *names), tuple(cells))


def _draw(
    canvas: Figure, rows: Sequence[Row], panels: Sequence[str], passes: Sequence[float]
) -> None:
    all_axes = canvas.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, label in zip(all_axes, panels, strict=True):
        curves = PANELS[label]
        colours = (PLAIN, COLOURS[0])[-len(curves) :]
        for (key, words), colour in zip(curves.items(), colours, strict=True):
            for number, repeat in enumerate(passes):
                own = [row for row in rows if row["repeat"] == repeat and key in row]
                axes.plot(
                    [row["step"] for row in own],
                    [_value(row, key) for row in own],
                    color=colour,
                    marker="o" if len(own) == 1 else None,
                    linewidth=1.3,
                    label=None if number else words,
                )
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    all_axes[-1].set_xlabel("the controller's steps")
    legend_below(canvas)
