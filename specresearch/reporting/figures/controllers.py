"""What a controller did over time, and what it estimated beside what came of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.drawing import (
    COLOURS,
    PLAIN,
    TEXT,
    Canvas,
    Curve,
    Picture,
    TextTable,
    draw_panels,
)
from specresearch.reporting.formatting import figure, interval

RATE, RUNNING, WAITING = "tokens_per_second", "running", "waiting"
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
    WAITING: ("Waiting", 1),
}  # figures of the controller's side: name and digits
OVER_BEST = "the better of plain decoding and the best fixed length, which is known only afterwards"
NO_BEST = (
    ' No fixed length was measured beside it; "compare=[2,4,8]" shows what the best one would have '
    "given."
)
MILLISECONDS = "ms a step"
ESTIMATES = {
    MILLISECONDS: {"measured_seconds": "measured", "estimated_seconds": "estimated"},
    "acceptance": {"acceptance": "estimated acceptance"},
    "requests": {"num_requests": "running", "num_shut": "shut: no drafts for them"},
    "drafts a step": {"num_made": "drafts made", "num_verified": "drafts verified"},
}  # label of a panel -> figures of a row, and their words
REQUIRED = ["measured_seconds", "acceptance", "num_shut", "num_made"]  # a panel needs one of them
MOST_ROWS = 40  # of a table
MOST_POINTS = 60  # of a curve: seconds are averaged into so many

Frame = Any  # a DataFrame; pandas' type stubs cannot tell its columns from frames


def timeline(comparison: Comparison, name: str) -> Picture | None:
    """Return what happened over time.

    It shows tokens per second of every side and, on the controller's side, the mean draft length,
    the share of drafts that was accepted, and requests running and waiting.
    """
    history, label = comparison.history, comparison.setting.label
    if history is None:
        return None
    own = _by_second(history.timeline)
    references = {}
    for reference, rows in history.references.items():
        references[reference] = _by_second(rows)[RATE]
    panels: dict[str, list[Curve]] = {}
    for key, panel in PANELS.items():
        if own[key].notna().any():
            panels[panel] = [_curve(label, own[key], COLOURS[0])]
    if PANELS[RATE] in panels:
        looks = ((PLAIN, "-"), (COLOURS[2], "--"))
        for (reference, rates), (colour, style) in zip(references.items(), looks, strict=False):
            panels[PANELS[RATE]].append(_curve(reference, rates, colour, style))
    if PANELS[RUNNING] in panels:
        running = _curve("requests running", own[RUNNING], TEXT)
        waiting = _curve("requests waiting", own[WAITING], TEXT, ":")
        panels[PANELS[RUNNING]] = [running, waiting]
    canvas = Canvas(0.5 + 1.1 * len(panels))
    draw_panels(canvas, panels, "seconds")
    rates = []
    for side, throughput in _throughputs(comparison).items():
        rates.append(f"{side} {interval(throughput, 0)} tokens/s")
    all_rates, ratio = "; ".join(rates), interval(history.speedup_over_best)
    than, advice = (OVER_BEST, "") if history.has_best else ("plain decoding", NO_BEST)
    return canvas.picture(
        name,
        title=comparison.scene,
        caption=f"In all: {all_rates}. {label} over {than}: {ratio}.{advice}",
        alt=f"The controller over time on {comparison.workload.label} at {comparison.load.label}; "
        f"{all_rates}; over {than} {ratio}.",
        table=_timeline_table(own, references),
    )


def _by_second(rows: Sequence[Mapping[str, Any]]) -> Frame:
    return pd.DataFrame(rows).set_index("second").astype(float)


def _curve(label: str, values: pd.Series, colour: str, style: str = "-") -> Curve:
    """Return values by second, averaged so that the curve stays readable."""
    known: Frame = values.dropna()
    stretches = np.arange(len(known)) * min(MOST_POINTS, len(known)) // max(1, len(known))
    means = known.reset_index().groupby(stretches).mean().set_index("second")[values.name]
    return Curve(label, means, colour, style)


def _throughputs(comparison: Comparison) -> dict[str, Estimate]:
    """Return tokens per second of the controller's side and of what it is compared with."""
    assert comparison.history is not None
    own = comparison.speculative["throughput"]
    throughputs = {comparison.setting.label: own} if own is not None else {}
    return throughputs | dict(comparison.history.throughputs)


def _timeline_table(own: Frame, references: Mapping[str, pd.Series]) -> TextTable:
    """Return the controller's figures and the throughput of the other sides, by second."""
    columns = [own[key] for key in COLUMNS]
    frame: Frame = pd.concat([*columns, *references.values()], axis=1).sort_index()
    names = [name for name, _ in COLUMNS.values()]
    digits = [digits for _, digits in COLUMNS.values()] + [0] * len(references)
    rows = []
    for second, values in _thinned(frame).iterrows():
        cells = [figure(value, places) for value, places in zip(values, digits, strict=True)]
        rows.append([f"{second:,.0f}", *cells])
    return TextTable(["Second", *names, *(f"Tokens/s, {label}" for label in references)], rows)


def _thinned(frame: Frame) -> Frame:
    """Return as many rows as a table shows, evenly spaced."""
    return frame.iloc[:: -(-len(frame) // MOST_ROWS) or 1]


def controller_estimates(comparison: Comparison, name: str) -> Picture | None:
    """Return a controller's own figures over the steps of every pass; None if it has none."""
    rows = comparison.history.estimates if comparison.history is not None else ()
    frame: Frame = pd.DataFrame(rows)
    known = frame.columns.intersection(REQUIRED)
    shown = {panel: words for panel, words in ESTIMATES.items() if words.keys() & set(known)}
    if not shown:
        return None
    labels = {key: label for words in shown.values() for key, label in words.items()}
    frame = frame.reindex(columns=["repeat", "step", *labels])
    frame[[key for key in ESTIMATES[MILLISECONDS] if key in labels]] *= 1e3
    panels = {}
    for panel, words in shown.items():
        panels[panel] = _curves_by_pass(frame, words)
    canvas = Canvas(0.5 + 1.1 * len(panels))
    draw_panels(canvas, panels, "the controller's steps")
    means = [f"{label} {figure(frame[key].mean())}" for key, label in labels.items()]
    units = " Times are milliseconds." if MILLISECONDS in shown else ""
    averages = f"{', '.join(means)}.{units}"
    num_passes = frame["repeat"].nunique()
    return canvas.picture(
        name,
        title=comparison.scene,
        caption=f"What {comparison.setting.label} reckoned with, averaged over stretches of steps, "
        f"a line for each of {num_passes} pass{'es' if num_passes > 1 else ''}. On average: "
        f"{averages}",
        alt=f"What the controller reckoned with on {comparison.workload.label} at "
        f"{comparison.load.label}, on average: {averages}",
        table=_estimates_table(frame, labels),
    )


def _curves_by_pass(frame: Frame, words: Mapping[str, str]) -> list[Curve]:
    curves = []
    colours = (PLAIN, COLOURS[0])[-len(words) :]
    for (key, label), colour in zip(words.items(), colours, strict=True):
        for _, steps in frame.groupby("repeat"):
            curves.append(Curve(label, steps.set_index("step")[key].dropna(), colour))
    return curves


def _estimates_table(frame: Frame, labels: Mapping[str, str]) -> TextTable:
    rows = []
    for _, row in _thinned(frame).iterrows():
        cells = [figure(row[key]) for key in labels]
        rows.append([f"{row['repeat'] + 1:.0f}, {row['step']:.0f}", *cells])
    names = [f"{label[0].upper()}{label[1:]}" for label in labels.values()]
    return TextTable(["Pass, step", *names], rows)
