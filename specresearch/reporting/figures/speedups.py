"""Speedups by load and by draft length."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import LATENCY, THROUGHPUT
from specresearch.reporting.decision import Decision, Point
from specresearch.reporting.drawing import (
    COLOURS,
    HEIGHT,
    MARKERS,
    PLAIN,
    TEXT,
    Picture,
    Table,
    draw_picture,
    error_bars,
    label_rows,
    legend_below,
)
from specresearch.reporting.formatting import NOTHING, inline, interval
from specresearch.reporting.workload import Load, Policy

MOST_SERIES = 5  # in colour
BASES = {
    LATENCY: "plain decoding's mean time from arrival to last token over the method's",
    THROUGHPUT: "tokens per second over plain decoding's",
}

Series = Mapping[Policy, Mapping[Load, Point]]


def by_load(decision: Decision, name: str) -> Picture:
    """Return every policy's speedup at every load; for a single load, a row per policy."""
    series, loads = _series(decision), decision.loads
    rows = []
    for load in loads:
        cells = []
        for points in series.values():
            gain = interval(points[load].comparison.gain) if load in points else NOTHING
            cells.append(gain)
        rows.append((load.label, *cells))
    gains = []
    for point in decision.points:
        gains.append(f"{point.load.amount_label}: {interval(point.comparison.gain)}")
    has_lines = len(loads) > 1
    basis = _basis({point.comparison.basis for point in decision.points})
    return draw_picture(
        name,
        title=decision.workload.label,
        caption=f"Speedup ({basis}) for {loads[0].axis_label}, with 95% intervals. The line at 1 "
        "is plain decoding.",
        alt=f"Speedup of {decision.policy.label} on {decision.workload.label} by "
        f"{loads[0].unit}: {'; '.join(gains)}.",
        table=Table(("Load", *(policy.label for policy in series)), tuple(rows)),
        draw=lambda canvas: (_draw_lines if has_lines else _draw_rows)(canvas, decision, series),
        height=HEIGHT if has_lines else 0.9 + 0.5 * len(series),
    )


def by_length(decision: Decision, name: str) -> Picture | None:
    """Return the speedup of the recommended method's fixed draft lengths, a line for each load.

    Returns None if fewer than two lengths were measured.
    """
    gains: dict[Load, dict[int, Estimate]] = {}
    for point in decision.all_points:
        policy, gain = point.comparison.policy, point.comparison.gain
        is_shown = policy.is_fixed and policy.method == decision.policy.method
        if is_shown and policy.length is not None and gain is not None:
            gains.setdefault(point.load, {}).setdefault(policy.length, gain)
    curves = {load: gains[load] for load in sorted(gains) if len(gains[load]) > 1}
    if not curves:
        return None
    lengths = sorted({length for curve in curves.values() for length in curve})
    rows = []
    for length in lengths:
        rows.append((str(length), *(interval(curve.get(length)) for curve in curves.values())))
    best = []
    for load, curve in curves.items():
        length = max(curve, key=lambda length: curve[length].value)
        best.append(f"{load.short_label}: best {length}, {inline(curve[length])}")
    return draw_picture(
        name,
        title=f"{decision.policy.method}: {decision.workload.label}",
        caption="Speedup of fixed draft lengths, with 95% intervals. Lengths whose intervals "
        "overlap cannot be told apart.",
        alt=f"Speedup of {decision.policy.method} by draft length on {decision.workload.label}. "
        f"{'; '.join(best)}.",
        table=Table(("Draft tokens", *(load.short_label for load in curves)), tuple(rows)),
        draw=lambda canvas: _draw_lengths(canvas, curves, lengths),
    )


def _basis(bases: Collection[str]) -> str:
    """Return what speedups compare; throughput beside latency is that of an overload."""
    return "; overloaded: ".join(words for basis, words in BASES.items() if basis in bases)


def _series(decision: Decision) -> Series:
    """Return the recommended policy first, then controllers, then fixed lengths.

    Policies of the recommended method come before those of others.
    """

    def order(point: Point) -> tuple[bool, bool, str, int]:
        policy = point.comparison.policy
        is_other_method = policy.method != decision.policy.method
        return policy.is_fixed, is_other_method, policy.variant, policy.length or 0

    series: dict[Policy, dict[Load, Point]] = {}
    for point in (*decision.points, *sorted(decision.others, key=order)):
        series.setdefault(point.comparison.policy, {})[point.load] = point
    return series


def _draw_lines(canvas: Figure, decision: Decision, series: Series) -> None:
    axes, loads = canvas.subplots(), decision.loads
    for number, (policy, points) in enumerate(series.items()):
        xs, gains = [], []
        for x, load in enumerate(loads):
            gain = points[load].comparison.gain if load in points else None
            if gain is not None:
                xs.append(x)
                gains.append(gain)
        if number < MOST_SERIES:
            width = 2.2 if policy == decision.policy else 1.3
            _draw_curve(axes, xs, gains, number=number, label=policy.label, width=width)
        else:
            values = [gain.value for gain in gains]
            label = "others, see the table" if number == MOST_SERIES else None
            axes.plot(xs, values, color=PLAIN, linewidth=0.8, alpha=0.7, label=label)
    _line_at_one(axes)
    axes.set_xticks(range(len(loads)), [load.amount_label for load in loads])
    axes.set_xlim(-0.3, len(loads) - 0.7)
    axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]))
    legend_below(canvas)
    axes.set(xlabel=loads[0].unit, ylabel="speedup")


def _draw_rows(canvas: Figure, decision: Decision, series: Series) -> None:
    axes, load = canvas.subplots(), decision.loads[0]
    for number, points in enumerate(series.values()):
        gain = points[load].comparison.gain
        if gain is not None:
            axes.errorbar(
                [gain.value],
                [len(series) - 1 - number],
                xerr=error_bars([gain]),
                fmt=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                linewidth=2,
            )
    labels = []
    for policy in series:
        labels.append(policy.label.replace(", ", ",\n", 1).replace(" (", "\n(", 1))
    label_rows(axes, labels)
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--")
    axes.set_xlabel("speedup")


def _draw_lengths(
    canvas: Figure, curves: Mapping[Load, Mapping[int, Estimate]], lengths: Sequence[int]
) -> None:
    axes = canvas.subplots()
    for number, (load, curve) in enumerate(curves.items()):
        xs = sorted(curve)
        gains = [curve[length] for length in xs]
        _draw_curve(axes, xs, gains, number=number, label=load.short_label, width=1.3)
    _line_at_one(axes)
    axes.set(xlabel="draft tokens per step, at most", ylabel="speedup")
    axes.set_xticks(lengths)
    legend_below(canvas)


def _draw_curve(
    axes: Axes,
    xs: Sequence[int],
    gains: Sequence[Estimate],
    *,
    number: int,
    label: str,
    width: float,
) -> None:
    axes.errorbar(
        xs,
        [gain.value for gain in gains],
        yerr=error_bars(gains),
        label=label,
        linewidth=width,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
    )


def _line_at_one(axes: Axes) -> None:
    axes.axhline(1, color=TEXT, linewidth=1, linestyle="--", zorder=1)
