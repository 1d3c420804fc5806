"""A mixed workload by class: who gains, and who pays."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import ClassChange
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import (
    COLOURS,
    TEXT,
    Picture,
    Table,
    draw_picture,
    label_rows,
    legend_below,
)
from specresearch.reporting.formatting import NOTHING, interval, listed, seconds

SIGNATURES = {True: "median better, slowest worse", False: NOTHING, None: "cannot be said"}
HEADER = ("Class", "TPOT P50", "TPOT P99", "P50 ratio", "P99 ratio", "Signature")


def by_class(comparison: Comparison, name: str) -> Picture | None:
    """Return the time per output token of every class relative to the baseline's."""
    known = [change for change in comparison.classes if change.median and change.slowest]
    if not known:
        return None
    rows = []
    for change in comparison.classes:
        figures = comparison.class_figures[change.name]
        cells = []
        for key in ("tpot_p50", "tpot_p99"):
            before, after = figures["baseline"].get(key), figures["speculative"].get(key)
            cells.append(f"{seconds(before)} → {seconds(after)}")
        cells += [interval(change.median), interval(change.slowest)]
        rows.append((change.name, *cells, SIGNATURES[change.has_signature]))
    ratios = []
    for change in known:
        ratios.append(
            f"{change.name}: P50 {interval(change.median)}, P99 {interval(change.slowest)} of "
            "plain decoding's"
        )
    finding = _finding(comparison)
    return draw_picture(
        name,
        title=comparison.scene,
        caption=f"{comparison.policy.label}. {finding}",
        alt=f"Time per output token by class, {'; '.join(ratios)}. {finding}",
        table=Table(HEADER, tuple(rows)),
        draw=lambda canvas: _draw(canvas, known),
        height=1.0 + 0.4 * len(known),
    )


def _finding(comparison: Comparison) -> str:
    paying = [change.name for change in comparison.classes if change.has_signature]
    unclear = [change.name for change in comparison.classes if change.has_signature is None]
    sentences = []
    if paying:
        sentences.append(f"Median better but slowest worse for {listed(paying)}.")
    if unclear:
        sentences.append(
            f"Of {listed(unclear)} it cannot be said whether the slowest requests pay for the "
            "median."
        )
    if not sentences:
        return "No class whose median improved while its slowest requests got worse."
    return " ".join(sentences)


def _draw(canvas: Figure, changes: list[ClassChange]) -> None:
    axes = canvas.subplots()
    for row, change in enumerate(reversed(changes)):
        assert change.median is not None
        assert change.slowest is not None
        label_p50, label_p99 = ("P50", "P99") if row == 0 else (None, None)
        _draw_ratio(axes, change.median, row + 0.12, "o", COLOURS[0], label_p50)
        _draw_ratio(axes, change.slowest, row - 0.12, "^", COLOURS[1], label_p99)
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", label="plain decoding")
    label_rows(axes, [change.name for change in changes])
    axes.set_xlabel("TPOT over plain decoding's; below 1 is faster")
    legend_below(canvas)


def _draw_ratio(
    axes: Axes, ratio: Estimate, height: float, marker: str, colour: str, label: str | None
) -> None:
    if ratio.interval is not None:
        axes.plot(ratio.interval, [height] * 2, color=colour, linewidth=2, alpha=0.5)
    axes.plot(ratio.value, height, marker, color=colour, label=label, markersize=7)
