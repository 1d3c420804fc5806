"""The speedup that step times allow, and what simulations predicted, against what was measured."""

from collections.abc import Sequence

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import THROUGHPUT
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.drawing import (
    PLAIN,
    Canvas,
    Picture,
    TextTable,
    draw_rows,
    error_bars,
    marks,
)
from specresearch.reporting.formatting import (
    NOTHING,
    figure,
    interval,
    seconds,
    seconds_with_interval,
)
from specresearch.reporting.predictions import CheckedPrediction

IDEAL = (
    "Predicted: plain decoding's pass time per token over the method's draft and pass time per "
    "token, without what the host does besides. Measured: decoding alone, without prefill. A point "
    "below the line loses the difference to the host."
)
FIGURES = {
    THROUGHPUT: "tokens/s",
    "ttft_p50": "TTFT P50",
    "ttft_p99": "TTFT P99",
    "tpot_p50": "TPOT P50",
    "tpot_p99": "TPOT P99",
}
MOST_ROWS = 12  # drawn


def ideal_speedups(comparisons: Sequence[Comparison], name: str) -> Picture | None:
    """Return the speedup that step times would allow, against what decoding reached."""
    rows, shares, most = [], [], 0.0
    points: dict[str, list[tuple[float, Estimate]]] = {}
    for comparison in comparisons:
        ideal, decode = comparison.ideal_speedup, comparison.decode_speedup
        if ideal is None or decode is None:
            continue
        scene = f"{comparison.workload.label}; {comparison.load.label}"
        measured = interval(decode) if decode.has_interval else figure(decode.value)
        share = decode.value / ideal if ideal else None
        if share is not None:
            shares.append(share)
        label = f"{comparison.setting.label}; {scene}"
        rows.append([label, figure(ideal), measured, figure(share)])
        points.setdefault(comparison.setting.method, []).append((ideal, decode))
        # Both axes reach equally far, so that the diagonal is the line of agreement.
        most = max(most, 1.08 * ideal, 1.08 * (decode.high or decode.value))
    if not rows:
        return None
    canvas = Canvas(3.2)
    axes = canvas.subplots()
    for number, method in enumerate(sorted(points)):
        ideals, decodes = zip(*points[method], strict=True)
        values = [decode.value for decode in decodes]
        looks = {"linestyle": "none", "alpha": 0.85, "label": method} | marks(number)
        axes.errorbar(ideals, values, yerr=error_bars(decodes), **looks)
    axes.plot([0, most], [0, most], color=PLAIN, linestyle="--", linewidth=1, label="as predicted")
    axes.set(xlim=(0, most), ylim=(0, most))
    axes.set(xlabel="speedup that the step times allow", ylabel="speedup measured")
    return canvas.picture(
        name,
        title="Predicted and measured",
        caption=IDEAL,
        alt=f"{len(rows)} measurements against the speedup that their own step times "
        f"allow; the measured speedup is at least {min(shares):.2f} of the predicted one.",
        table=TextTable(["Measurement", "Predicted", "Measured", "Measured / predicted"], rows),
    )


def simulated(predictions: Sequence[CheckedPrediction], name: str) -> Picture | None:
    """Return predicted over measured figures of every setting that has both."""
    if not predictions:
        return None
    shown = predictions[:MOST_ROWS]
    errors, series = [], {}
    for key, label in FIGURES.items():
        ratios = [prediction.ratio(key) for prediction in predictions]
        known = [abs(ratio - 1) for ratio in ratios if ratio is not None]
        if known:
            errors.append(f"{label} {max(known):.0%}")
        series[label] = [Estimate.of(ratio) for ratio in ratios[:MOST_ROWS]]
    largest = ", ".join(errors)
    more = ""
    if len(shown) < len(predictions):
        more = f" The first {len(shown)} are drawn; the table has all {len(predictions)}."
    canvas = Canvas(0.9 + 0.62 * len(shown))
    axes = canvas.subplots()
    draw_rows(axes, ["\n".join(_label(each)) for each in shown], series, reference="as measured")
    axes.set_xlabel("predicted over measured")
    header = [f"{label}, predicted and measured" for label in FIGURES.values()]
    return canvas.picture(
        name,
        title="Predicted by simulation",
        caption="What simulations predicted of settings that were measured, too. Largest errors: "
        f"{largest}.{more}",
        alt=f"{len(predictions)} predictions of simulations over what was measured; largest "
        f"errors: {largest}.",
        table=TextTable(["Setting", *header], [_row(prediction) for prediction in predictions]),
    )


def _label(prediction: CheckedPrediction) -> tuple[str, str]:
    measured = prediction.measured
    return measured.setting.label, f"{measured.workload.data}, {measured.load.short_label}"


def _row(prediction: CheckedPrediction) -> list[str]:
    cells = ["; ".join((*_label(prediction), prediction.measured.workload.label))]
    for key in FIGURES:
        predicted = prediction.predicted.speculative.value(key)
        measured = prediction.measured.speculative[key]
        if prediction.ratio(key) is None:
            cells.append(NOTHING)
        elif key == THROUGHPUT:
            cells.append(f"{figure(predicted, 1)}; {interval(measured, 1)}")
        else:
            cells.append(f"{seconds(predicted)}; {seconds_with_interval(measured)}")
    return cells
