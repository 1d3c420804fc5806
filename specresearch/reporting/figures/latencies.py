"""Latencies of plain decoding and of the method by load, with the user's limits."""

import math
from collections.abc import Mapping, Sequence

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import COLOURS, PLAIN, TEXT, Canvas, Picture, TextTable
from specresearch.reporting.formatting import NOTHING, seconds, seconds_with_interval, time_scale
from specresearch.reporting.requirements import Requirements

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
PERCENTS = {50: "-", 99: "--"}  # their line styles
FAR = 1.1  # times the largest value: a limit beyond it is not drawn
ZERO_GAP = (
    "An ITL P50 of 0 ms is right: a speculative step delivers several tokens at once, so the "
    "median gap between two tokens is 0."
)


def latencies(decisions: Sequence[Decision], requirements: Requirements) -> list[Picture]:
    """Return a chart for each decision with several loads; one latency has one axis in all."""
    drawn = {}
    for number, decision in enumerate(decisions, start=1):
        points = _comparable(decision)
        if len(points) > 1:
            drawn[f"latency-{number}"] = decision, points
    tops = {}
    for metric in METRICS:
        values = []
        for _, points in drawn.values():
            values += [value for point in points for value in _values(point, metric)]
        tops[metric] = max(values, default=0.0)
    pictures = []
    for name, (decision, points) in drawn.items():
        pictures.append(_picture(decision, points, requirements, tops, name))
    return pictures


def latency_table(decisions: Sequence[Decision]) -> tuple[TextTable | None, str]:
    """Return the latencies of the recommended settings, and what explains an ITL of 0."""
    rows, note = [], ""
    for decision in decisions:
        for point in decision.points:
            for label, side in zip(("plain", point.setting.label), point.sides, strict=True):
                cells = [point.scene, label]
                for metric in METRICS:
                    for percent in PERCENTS:
                        cells.append(seconds_with_interval(side[f"{metric}_p{percent}"]))
                if side.value("itl_p50") == 0:
                    note = ZERO_GAP
                if set(cells[2:]) != {NOTHING}:
                    rows.append(cells)
    header = [f"{label} P{percent}" for label in METRICS.values() for percent in PERCENTS]
    return (TextTable(["Workload and load", "Side", *header], rows) if rows else None), note


def _comparable(decision: Decision) -> list[Comparison]:
    """Return the points with latencies of both sides that do not just measure a queue."""
    points = []
    for point in decision.points:
        is_known = all(side["tpot_p99"] is not None for side in point.sides)
        if is_known and not point.both_overloaded:
            points.append(point)
    return points


def _values(point: Comparison, metric: str) -> list[float]:
    names = [f"{metric}_p{percent}" for percent in PERCENTS]
    return [side.figures[name].value for side in point.sides for name in names if side[name]]


def _picture(
    decision: Decision,
    points: Sequence[Comparison],
    requirements: Requirements,
    tops: Mapping[str, float],
    name: str,
) -> Picture:
    canvas = Canvas(0.5 + 1.0 * len(METRICS))
    xs = range(len(points))
    looks = (("plain", PLAIN), (decision.setting.label, COLOURS[0]))
    all_axes = canvas.subplots(len(METRICS), sharex=True)
    for axes, (metric, label) in zip(all_axes, METRICS.items(), strict=True):
        scale, unit = time_scale(tops[metric])
        for side, (words, colour) in enumerate(looks):
            for percent, style in PERCENTS.items():
                values = [point.sides[side].value(f"{metric}_p{percent}") for point in points]
                scaled = [math.nan if value is None else scale * value for value in values]
                axes.plot(xs, scaled, style, color=colour, label=f"{words}, P{percent}")
        limit = getattr(requirements, metric, None)
        if limit is not None and limit < FAR * tops[metric]:
            axes.axhline(limit * scale, color=TEXT, linewidth=1, linestyle=":", label="limit")
        axes.set(ylabel=f"{label}, {unit}", ylim=(0, FAR * scale * tops[metric] or None))
    all_axes[-1].set_xticks(xs, [point.load.amount_label for point in points])
    all_axes[-1].set_xlabel(decision.unit)
    return canvas.picture(
        name,
        title=f"{decision.workload.label}, by {points[0].load.kind}",
        caption="Median (P50) and slowest in a hundred (P99).",
        alt=f"Latencies by {decision.unit} on {decision.workload.label}. "
        f"{'; '.join(_change(point) for point in points)}.",
        table=None,
    )


def _change(point: Comparison) -> str:
    words = []
    for name in ("ttft_p99", "tpot_p99"):
        before, after = (seconds(side.value(name)) for side in point.sides)
        words.append(f"{name.replace('_p', ' P').upper()} {before} became {after}")
    return f"{point.load.amount_label}: {', '.join(words)}"
