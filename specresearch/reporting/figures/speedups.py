"""Speedups by load and by draft length."""

from collections.abc import Mapping

from matplotlib.axes import Axes

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import LATENCY, THROUGHPUT
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import (
    PLAIN,
    TEXT,
    Canvas,
    Picture,
    TextTable,
    draw_rows,
    error_bars,
    marks,
)
from specresearch.reporting.formatting import inline, interval
from specresearch.reporting.workload import Load, Setting

MOST_SERIES = 5  # in colour
BASES = {
    LATENCY: "plain decoding's mean time from arrival to last token over the method's",
    THROUGHPUT: "tokens per second over plain decoding's",
}

Gains = Mapping[Load, Estimate | None]


def by_load(decision: Decision, name: str) -> Picture:
    """Return every setting's speedup at every load; for a single load, a row per setting."""
    series, loads = _gains_by_setting(decision), decision.loads
    rows = []
    for load in loads:
        rows.append([load.label, *(interval(gains.get(load)) for gains in series.values())])
    values = []
    for point in decision.points:
        values.append(f"{point.load.amount_label}: {interval(point.gain)}")
    bases = {point.basis for point in decision.points}
    basis = "; overloaded: ".join(words for basis, words in BASES.items() if basis in bases)
    is_single = len(loads) == 1
    canvas = Canvas(0.9 + 0.5 * len(series) if is_single else None)
    axes = canvas.subplots()
    if is_single:
        labels = []
        for setting in series:
            labels.append(setting.label.replace(", ", ",\n", 1).replace(" (", "\n(", 1))
        draw_rows(axes, labels, {"": [gains[loads[0]] for gains in series.values()]})
        axes.set_xlabel("speedup")
    else:
        _draw_lines(axes, decision, series)
    return canvas.picture(
        name,
        title=decision.workload.label,
        caption=f"Speedup ({basis}) for {loads[0].axis_label}, with 95% intervals. The line at 1 "
        "is plain decoding.",
        alt=f"Speedup of {decision.setting.label} on {decision.workload.label} by "
        f"{loads[0].unit}: {'; '.join(values)}.",
        table=TextTable(["Load", *(setting.label for setting in series)], rows),
    )


def _gains_by_setting(decision: Decision) -> Mapping[Setting, Gains]:
    """Return the recommended setting first, then controllers, then fixed lengths.

    Settings of the recommended method come before those of others.
    """

    def order(point: Comparison) -> tuple[bool, bool, str, int]:
        setting = point.setting
        is_other_method = setting.method != decision.setting.method
        return setting.is_fixed, is_other_method, setting.variant, setting.length or 0

    series: dict[Setting, dict[Load, Estimate | None]] = {}
    for point in (*decision.points, *sorted(decision.others, key=order)):
        series.setdefault(point.setting, {})[point.load] = point.gain
    return series


def _draw_lines(axes: Axes, decision: Decision, series: Mapping[Setting, Gains]) -> None:
    loads = decision.loads
    for number, (setting, gains) in enumerate(series.items()):
        curve = {}
        for x, load in enumerate(loads):
            gain = gains.get(load)
            if gain is not None:
                curve[x] = gain
        if number < MOST_SERIES:
            width = 2.2 if setting == decision.setting else 1.3
            _draw_curve(axes, curve, number=number, label=setting.label, width=width)
        else:
            values = [gain.value for gain in curve.values()]
            label = "others, see the table"
            axes.plot(list(curve), values, color=PLAIN, linewidth=0.8, alpha=0.7, label=label)
    _line_at_one(axes)
    axes.set_xticks(range(len(loads)), [load.amount_label for load in loads])
    axes.set_xlim(-0.3, len(loads) - 0.7)
    # The line at 1 stays in sight with room below, however fast everything is.
    axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]))
    axes.set(xlabel=loads[0].unit, ylabel="speedup")


def by_length(decision: Decision, name: str) -> Picture | None:
    """Return the speedup of the recommended method's fixed draft lengths, a line for each load.

    Returns None if fewer than two lengths were measured.
    """
    gains: dict[Load, dict[int, Estimate]] = {}
    for point in sorted(decision.fixed_points, key=lambda point: point.load):
        if point.setting.length is not None and point.gain is not None:
            gains.setdefault(point.load, {}).setdefault(point.setting.length, point.gain)
    curves = {load: curve for load, curve in gains.items() if len(curve) > 1}
    if not curves:
        return None
    canvas = Canvas()
    axes = canvas.subplots()
    best = []
    for number, (load, curve) in enumerate(curves.items()):
        length = max(curve, key=lambda length: curve[length].value)
        best.append(f"{load.short_label}: best {length}, {inline(curve[length])}")
        ascending = dict(sorted(curve.items()))
        _draw_curve(axes, ascending, number=number, label=load.short_label, width=1.3)
    _line_at_one(axes)
    rows = []
    lengths = sorted({length for curve in curves.values() for length in curve})
    for length in lengths:
        rows.append([str(length), *(interval(curve.get(length)) for curve in curves.values())])
    axes.set(xlabel="draft tokens per step, at most", ylabel="speedup", xticks=lengths)
    return canvas.picture(
        name,
        title=f"{decision.setting.method}: {decision.workload.label}",
        caption="Speedup of fixed draft lengths, with 95% intervals. Lengths whose intervals "
        "overlap cannot be told apart.",
        alt=f"Speedup of {decision.setting.method} by draft length on {decision.workload.label}. "
        f"{'; '.join(best)}.",
        table=TextTable(["Draft tokens", *(load.short_label for load in curves)], rows),
    )


def _draw_curve(
    axes: Axes, curve: Mapping[int, Estimate], *, number: int, label: str, width: float
) -> None:
    gains = list(curve.values())
    axes.errorbar(
        list(curve),
        [gain.value for gain in gains],
        yerr=error_bars(gains),
        label=label,
        linewidth=width,
        **marks(number),
    )


def _line_at_one(axes: Axes) -> None:
    axes.axhline(1, color=TEXT, linewidth=1, linestyle="--", zorder=1)
