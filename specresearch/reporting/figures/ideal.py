"""The speedup that step times would allow, against what decoding reached."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import (
    COLOURS,
    MARKERS,
    PLAIN,
    Picture,
    Table,
    draw_picture,
    error_bars,
    legend_below,
)
from specresearch.reporting.formatting import figure, interval

CAPTION = (
    "Predicted: plain decoding's pass time per token over the method's draft and pass time per "
    "token, without what the host does besides. Measured: decoding alone, without prefill. A point "
    "below the line loses the difference to the host."
)

Measurement = tuple[Comparison, float, Estimate]  # with its ideal and its measured speedup


def ideal_speedups(comparisons: Sequence[Comparison], name: str) -> Picture | None:
    """Return every measurement whose step times are known."""
    measurements: list[Measurement] = []
    for comparison in comparisons:
        if comparison.ideal is not None and comparison.decode is not None:
            measurements.append((comparison, comparison.ideal, comparison.decode))
    if not measurements:
        return None
    rows, shares = [], []
    for comparison, ideal, decode in measurements:
        scene = f"{comparison.workload.label}; {comparison.load.label}"
        measured = interval(decode) if decode.has_interval else figure(decode.value)
        share = decode.value / ideal if ideal else None
        shares += [share] if share is not None else []
        label = f"{comparison.policy.label}; {scene}"
        rows.append((label, figure(ideal), measured, figure(share)))
    return draw_picture(
        name,
        title="Predicted and measured",
        caption=CAPTION,
        alt=f"{len(measurements)} measurements against the speedup that their own step times "
        f"allow; the measured speedup is at least {min(shares):.2f} of the predicted one.",
        table=Table(("Measurement", "Predicted", "Measured", "Measured / predicted"), tuple(rows)),
        draw=lambda canvas: _draw(canvas, measurements),
        height=3.2,
    )


def _draw(canvas: Figure, measurements: Sequence[Measurement]) -> None:
    axes = canvas.subplots()
    methods = sorted({comparison.policy.method for comparison, _, _ in measurements})
    most = 0.0
    for number, method in enumerate(methods):
        own = [entry for entry in measurements if entry[0].policy.method == method]
        decodes = [decode for _, _, decode in own]
        axes.errorbar(
            [ideal for _, ideal, _ in own],
            [decode.value for decode in decodes],
            yerr=error_bars(decodes),
            fmt=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=method,
            alpha=0.85,
        )
        for _, ideal, decode in own:
            most = max(most, 1.08 * ideal, 1.08 * (decode.high or decode.value))
    axes.plot([0, most], [0, most], color=PLAIN, linestyle="--", linewidth=1, label="as predicted")
    axes.set(xlim=(0, most), ylim=(0, most))
    axes.set(xlabel="speedup that the step times allow", ylabel="speedup measured")
    legend_below(canvas)
