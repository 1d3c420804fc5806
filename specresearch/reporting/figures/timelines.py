"""What a controller did over time, and what the best fixed length would have given."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Trace
from specresearch.reporting.drawing import (
    COLOURS,
    PLAIN,
    TEXT,
    Picture,
    Table,
    draw_picture,
    legend_below,
)
from specresearch.reporting.formatting import figure, interval

RATE, RUNNING = "tokens_per_second", "running"
PANELS = {
    RATE: "tokens/s",
    "draft_length": "drafts a step",
    "acceptance": "accepted",
    RUNNING: "requests",
}
COLUMNS = {
    RATE: ("Tokens/s", 0),
    "draft_length": ("Drafts a step", 1),
    "acceptance": ("Acceptance", 2),
    RUNNING: ("Running", 1),
    "waiting": ("Waiting", 1),
}  # figures of the controller's side: name and digits
LOOKS = ((COLOURS[0], "-"), (PLAIN, "-"), (COLOURS[2], "--"))  # of the sides
MOST_ROWS = 40  # of the table
MOST_POINTS = 60  # of a curve: seconds are averaged into so many
OVER_BEST = "the better of plain decoding and the best fixed length, which is known only afterwards"
NO_BEST = (
    ' No fixed length was measured beside it; "compare=[2,4,8]" shows what the best one would have '
    "given."
)

Rows = Sequence[Mapping[str, Any]]


def timeline(trace: Trace, name: str) -> Picture:
    """Return what happened over time.

    It shows tokens per second of every side and, on the controller's side, the mean draft length,
    the share of drafts that was accepted, and requests running and waiting.
    """
    controlled = next(iter(trace.timelines.values()))
    panels = []
    for key in PANELS:
        if any(row[key] is not None for row in controlled):
            panels.append(key)
    ratio = interval(trace.speedup_over_best)
    than, advice = (OVER_BEST, "") if trace.best else ("plain decoding", NO_BEST)
    rates = []
    for label, throughput in trace.throughputs.items():
        rates.append(f"{label} {interval(throughput, 0)} tokens/s")
    all_rates = "; ".join(rates)
    return draw_picture(
        name,
        title=trace.scene,
        caption=f"In all: {all_rates}. {trace.policy.label} over {than}: {ratio}.{advice}",
        alt=f"The controller over time on {trace.workload.label} at {trace.load.label}; "
        f"{all_rates}; over {than} {ratio}.",
        table=_table(trace),
        draw=lambda canvas: _draw(canvas, trace, panels),
        height=0.5 + 1.1 * len(panels),
    )


def _table(trace: Trace) -> Table:
    """Return the controller's figures and the throughput of the other sides, by second."""
    by_second = []
    for rows in trace.timelines.values():
        by_second.append({row["second"]: row for row in rows})
    controlled, *others = by_second
    seconds = sorted({second for side in by_second for second in side})
    every = -(-len(seconds) // MOST_ROWS) or 1
    table = []
    for second in seconds[::every]:
        cells = [figure(second, 0)]
        for key, (_, digits) in COLUMNS.items():
            cells.append(figure(controlled.get(second, {}).get(key), digits))
        for side in others:
            cells.append(figure(side.get(second, {}).get(RATE), 0))
        table.append(tuple(cells))
    names = [name for name, _ in COLUMNS.values()]
    sides = [f"Tokens/s, {label}" for label in list(trace.timelines)[1:]]
    return Table(("Second", *names, *sides), tuple(table))


def _draw(canvas: Figure, trace: Trace, panels: Sequence[str]) -> None:
    all_axes = canvas.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    controlled = next(iter(trace.timelines.values()))
    for axes, key in zip(all_axes, panels, strict=True):
        if key == RUNNING:
            for part, style in ((RUNNING, "-"), ("waiting", ":")):
                label = f"requests {part}"
                axes.plot(*_curve(controlled, part), style, color=TEXT, label=label, linewidth=1.3)
        else:
            shown = (
                list(trace.timelines.items()) if key == RATE else [(trace.policy.label, controlled)]
            )
            for (label, rows), (colour, style) in zip(shown, LOOKS, strict=False):
                axes.plot(*_curve(rows, key), style, color=colour, label=label, linewidth=1.5)
        axes.set_ylabel(PANELS[key])
        axes.set_ylim(bottom=0)
    all_axes[-1].set_xlabel("seconds")
    legend_below(canvas)


def _curve(rows: Rows, key: str) -> tuple[list[float], list[float]]:
    """Return seconds and values, averaged so that the curve stays readable."""
    known = [(row["second"], row[key]) for row in rows if row[key] is not None]
    points = np.array(known, dtype=float).reshape(-1, 2)
    parts = np.array_split(points, max(1, min(MOST_POINTS, len(known))))
    means = [part.mean(0) for part in parts if len(part)]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]
