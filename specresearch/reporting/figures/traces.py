"""What a controller did over time, and what the best fixed length would have given."""

from collections.abc import Sequence
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
    legend_below,
    picture,
)
from specresearch.reporting.wording import figure, interval

PANELS = {
    "tokens_per_second": "tokens/s",
    "draft_length": "drafts a step",
    "acceptance": "accepted",
    "running": "requests",
}
COLUMNS = {
    "tokens_per_second": ("Tokens/s", 0),
    "draft_length": ("Drafts a step", 1),
    "acceptance": ("Acceptance", 2),
    "running": ("Running", 1),
    "waiting": ("Waiting", 1),
}  # figure of the controller's side -> its words and digits
MOST_ROWS = 40  # of the table
MOST_POINTS = 60  # of a curve: seconds are averaged into so many


def trace(own: Trace, name: str) -> Picture:
    """Tokens per second of every side, the controller's mean draft length, the share of drafts that was accepted, and requests
    running and waiting."""
    mine = next(iter(own.sides))
    panels = {
        key: label
        for key, label in PANELS.items()
        if any(number is not None for number in _of(own.sides[mine], key))
    }
    ratio = interval(own.own_best)

    def draw(canvas: Figure) -> None:
        every = canvas.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (key, label) in zip(every, panels.items(), strict=True):
            for side, colour, style in _lines(own, key):
                xs, ys = _thinned(own.sides[side], key)
                axes.plot(xs, ys, color=colour, linestyle=style, label=side, linewidth=1.5)
            if key == "running":
                for part, style in (("running", "-"), ("waiting", ":")):
                    xs, ys = _thinned(own.sides[mine], part)
                    axes.plot(
                        xs, ys, color=TEXT, linestyle=style, label=f"requests {part}", linewidth=1.3
                    )
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        every[-1].set_xlabel("seconds")
        legend_below(canvas)

    than, advice = (
        "the better of plain decoding and the best fixed length, which is known only afterwards",
        "",
    )
    if not own.best:
        than = "plain decoding"
        advice = ' No fixed length was measured beside it; "compare=[2,4,8]" shows what the best one would have given.'
    told = "; ".join(
        f"{side} {interval(figure, 0)} tokens/s" for side, figure in own.throughputs.items()
    )
    return picture(
        name,
        f"{own.workload.label}, {own.load.label}",
        f"In all: {told}. {own.policy.label} over {than}: {ratio}.{advice}",
        f"The controller over time on {own.workload.label} at {own.load.label}; {told}; over {than} {ratio}.",
        _table(own),
        draw,
        height=0.5 + 1.1 * len(panels),
    )


def _lines(own: Trace, key: str) -> list[tuple[str, str, str]]:
    """Side, colour, line style."""
    mine = next(iter(own.sides))
    looks = [(COLOURS[0], "-"), (PLAIN, "-"), (COLOURS[2], "--")]
    sides = {
        "tokens_per_second": list(own.sides),
        "draft_length": [mine],
        "acceptance": [mine],
    }.get(key, [])
    return [(side, *look) for side, look in zip(sides, looks, strict=False)]


def _of(rows: Sequence[dict[str, Any]], key: str) -> list[float | None]:
    return [row.get(key) for row in rows]


def _thinned(rows: Sequence[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Seconds averaged so that a curve stays readable."""
    known = [
        (row["second"], row[key])
        for row in rows
        if row.get(key) is not None and row.get("second") is not None
    ]
    parts = np.array_split(
        np.array(known, dtype=float).reshape(-1, 2), max(1, min(MOST_POINTS, len(known)))
    )
    means = [part.mean(0) for part in parts if len(part)]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]


def _table(own: Trace) -> Table:
    """The controller's figures and the throughput of the other sides, by second."""
    mine, *others = ({row.get("second"): row for row in rows} for rows in own.sides.values())
    seconds = sorted({second for side in (mine, *others) for second in side if second is not None})
    every = -(-len(seconds) // MOST_ROWS) or 1
    rows = tuple(
        (
            figure(second, 0),
            *(
                figure(mine.get(second, {}).get(key), digits)
                for key, (_, digits) in COLUMNS.items()
            ),
            *(figure(side.get(second, {}).get("tokens_per_second"), 0) for side in others),
        )
        for second in seconds[::every]
    )
    sides = (f"Tokens/s, {label}" for label in list(own.sides)[1:])
    return Table(("Second", *(words for words, _ in COLUMNS.values()), *sides), rows)
