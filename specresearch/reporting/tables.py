"""The tables of a report: every comparison, step times, and simulations."""

from collections.abc import Sequence

from specresearch.bench.side_comparison import THROUGHPUT
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import TextTable
from specresearch.reporting.formatting import (
    NOTHING,
    figure,
    interval,
    seconds,
    seconds_with_interval,
)
from specresearch.reporting.predictions import CheckedPrediction

COMPARISONS = [
    "Workload",
    "Load",
    "Setting",
    "Speedup",
    "Tokens/s, plain",
    "Tokens/s",
    "Accepted",
    "P10",
    "Decoding alone",
    "Step times allow",
    "Folder",
]
PARTS = {
    "verify": "the target's pass",
    "propose": "drafting",
    "accept": "accepting",
    "commit": "keeping what was accepted",
    "control": "choosing draft lengths",
    "schedule": "scheduling",
    "host": "everything else",
}
PREDICTED = {
    THROUGHPUT: "tokens/s",
    "ttft_p50": "TTFT P50",
    "ttft_p99": "TTFT P99",
    "tpot_p50": "TPOT P50",
    "tpot_p99": "TPOT P99",
}


def every_comparison(comparisons: Sequence[Comparison]) -> TextTable:
    """Return a row for every side that was measured beside plain decoding."""
    rows = []
    for comparison in comparisons:
        cells = [comparison.workload.label, comparison.load.label, comparison.setting.label]
        cells.append(interval(comparison.gain))
        for side in comparison.sides:
            cells.append(interval(side["throughput"], 1).removesuffix(" (no interval)"))
        acceptance = comparison.speculative.acceptance
        rate, p10 = (acceptance.rate, acceptance.p10) if acceptance else (None, None)
        cells += [interval(rate), interval(p10)]
        cells += [interval(comparison.decode_speedup), figure(comparison.ideal_speedup)]
        rows.append([*cells, comparison.folder.name])
    return TextTable(COMPARISONS, rows)


def step_times(decisions: Sequence[Decision]) -> TextTable | None:
    """Return the parts of a mean step of both sides, at every load."""
    sides = []
    for decision in decisions:
        for point in decision.points:
            for label, side in zip(("plain", point.setting.label), point.sides, strict=True):
                if side.step is not None:
                    sides.append((f"{point.scene}; {label}", side.step))
    parts = [part for part in PARTS if any(step.parts.get(part) for _, step in sides)]
    rows = []
    for label, step in sides:
        cells = [seconds(step.parts.get(part)) for part in parts]
        rows.append([label, seconds(step.seconds), figure(step.tokens), *cells])
    header = ["Side", "Whole step", "Tokens a step", *(PARTS[part] for part in parts)]
    return TextTable(header, rows) if rows else None


def simulations(predictions: Sequence[CheckedPrediction]) -> tuple[TextTable | None, str]:
    """Return what simulations predicted of settings that were measured, and the largest errors."""
    errors, rows = [], []
    for key, label in PREDICTED.items():
        ratios = [prediction.ratio(key) for prediction in predictions]
        known = [abs(ratio - 1) for ratio in ratios if ratio is not None]
        if known:
            errors.append(f"{label} {max(known):.0%}")
    for prediction in predictions:
        measured = prediction.measured
        cells = [f"{measured.setting.label}; {measured.scene}"]
        cells += [_predicted(prediction, key) for key in PREDICTED]
        rows.append(cells)
    header = [f"{label}, predicted and measured" for label in PREDICTED.values()]
    table = TextTable(["Setting", *header], rows) if rows else None
    return table, f"Largest errors: {', '.join(errors)}." if errors else ""


def _predicted(prediction: CheckedPrediction, key: str) -> str:
    predicted = prediction.predicted.speculative.value(key)
    measured = prediction.measured.speculative[key]
    if prediction.ratio(key) is None:
        return NOTHING
    if key == THROUGHPUT:
        return f"{figure(predicted, 1)}; {interval(measured, 1)}"
    return f"{seconds(predicted)}; {seconds_with_interval(measured)}"
