"""What a simulation predicted, over what was measured."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specresearch.reporting.drawing import (
    COLOURS,
    MARKERS,
    TEXT,
    Picture,
    Table,
    draw_picture,
    label_rows,
    legend_below,
)
from specresearch.reporting.formatting import (
    NOTHING,
    figure,
    interval,
    seconds,
    seconds_with_interval,
)
from specresearch.reporting.predictions import CheckedPrediction

THROUGHPUT = "throughput"
FIGURES = {
    THROUGHPUT: "tokens/s",
    "ttft_p50": "TTFT P50",
    "ttft_p99": "TTFT P99",
    "tpot_p50": "TPOT P50",
    "tpot_p99": "TPOT P99",
}
MOST_ROWS = 12  # drawn


def simulated(predictions: Sequence[CheckedPrediction], name: str) -> Picture | None:
    """Return predicted over measured figures of every setting that has both."""
    if not predictions:
        return None
    errors = []
    for key, label in FIGURES.items():
        ratios = [_ratio(prediction, key) for prediction in predictions]
        known = [abs(ratio - 1) for ratio in ratios if ratio is not None]
        errors += [f"{label} {max(known):.0%}"] if known else []
    largest = ", ".join(errors)
    shown = predictions[:MOST_ROWS]
    more = ""
    if len(shown) < len(predictions):
        more = f" The first {len(shown)} are drawn; the table has all {len(predictions)}."
    header = [f"{label}, predicted and measured" for label in FIGURES.values()]
    return draw_picture(
        name,
        title="Predicted by simulation",
        caption="What simulations predicted of settings that were measured, too. Largest errors: "
        f"{largest}.{more}",
        alt=f"{len(predictions)} predictions of simulations over what was measured; largest "
        f"errors: {largest}.",
        table=Table(("Setting", *header), tuple(_row(checked) for checked in predictions)),
        draw=lambda canvas: _draw(canvas, shown),
        height=0.9 + 0.62 * len(shown),
    )


def _label(checked: CheckedPrediction) -> str:
    measured = checked.measured
    return f"{measured.policy.label}; {measured.workload.data}, {measured.load.short_label}"


def _row(checked: CheckedPrediction) -> tuple[str, ...]:
    cells = []
    for key in FIGURES:
        predicted = checked.prediction.figures.get(key)
        measured = checked.measured.speculative[key]
        if _ratio(checked, key) is None:
            cells.append(NOTHING)
        elif key == THROUGHPUT:
            cells.append(f"{figure(predicted, 1)}; {interval(measured, 1)}")
        else:
            cells.append(f"{seconds(predicted)}; {seconds_with_interval(measured)}")
    return f"{_label(checked)}; {checked.measured.workload.label}", *cells


def _ratio(checked: CheckedPrediction, key: str) -> float | None:
    """Return predicted over measured.

    Returns None if either is unknown, and for latencies that grow for as long as a queue does.
    """
    if checked.measured.any_overloaded and key != THROUGHPUT:
        return None
    predicted = checked.prediction.figures.get(key)
    measured = checked.measured.speculative.value(key)
    return predicted / measured if predicted is not None and measured else None


def _draw(canvas: Figure, shown: Sequence[CheckedPrediction]) -> None:
    axes = canvas.subplots()
    for number, (key, label) in enumerate(FIGURES.items()):
        offset = 0.12 * (number - (len(FIGURES) - 1) / 2)
        xs, ys = [], []
        for row, checked in enumerate(reversed(shown)):
            ratio = _ratio(checked, key)
            if ratio is not None:
                xs.append(ratio)
                ys.append(row - offset)
        axes.plot(xs, ys, MARKERS[number], color=COLOURS[number], label=label)
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", label="as measured")
    label_rows(axes, [_label(checked).replace("; ", "\n") for checked in shown])
    axes.set_xlabel("predicted over measured")
    legend_below(canvas)
