"""Speedups: by load, by draft length, and against what the step times predict."""

from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Comparison, Load, Policy
from specresearch.reporting.decision import Decision, Point
from specresearch.reporting.drawing import (
    COLOURS,
    HEIGHT,
    MARKERS,
    PLAIN,
    TEXT,
    Picture,
    Table,
    legend_below,
    picture,
)
from specresearch.reporting.estimates import Estimate
from specresearch.reporting.wording import NOTHING, figure, inline, interval

MOST_SERIES = 5  # in colour
BASES = {
    "throughput": "tokens per second over plain decoding's",
    "latency": "plain decoding's mean time from arrival to last token over the method's",
    "median latency": "plain decoding's median time from arrival to last token over the method's",
}


def by_load(decision: Decision, name: str) -> Picture:
    """Every policy's speedup at every load, with intervals; where there is only one load, a row for each policy."""
    series = _series(decision)
    loads = decision.loads
    basis = _bases({point.comparison.basis for point in decision.points})
    header = ("Load", *(policy.label for policy in series))
    rows = tuple(
        (
            load.label,
            *(
                interval(points[load].comparison.gain) if load in points else NOTHING
                for points in series.values()
            ),
        )
        for load in loads
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        if len(loads) > 1:
            _draw_lines(canvas, axes, series, loads, decision.policy)
            axes.set_xlabel(loads[0].unit)
            axes.set_ylabel("speedup")
        else:
            _draw_rows(
                axes,
                {
                    policy: points[loads[0]]
                    for policy, points in series.items()
                    if loads[0] in points
                },
            )
            axes.set_xlabel("speedup")

    shown = [f"{p.load.amount_label}: {interval(p.comparison.gain)}" for p in decision.points]
    alt = f"Speedup of {decision.policy.label} on {decision.workload.label} by {loads[0].unit}: {'; '.join(shown)}."
    return picture(
        name,
        decision.workload.label,
        f"Speedup ({basis}) for {loads[0].axis_label}, with 95% intervals. The line at 1 is plain decoding.",
        alt,
        Table(header, rows),
        draw,
        height=HEIGHT if len(loads) > 1 else 0.9 + 0.5 * len(series),
    )


def by_length(decision: Decision, name: str) -> Picture | None:
    """Speedup of the recommended method's fixed draft lengths, a line for each load; None where fewer than two were measured."""
    curves: dict[Load, dict[int, Estimate]] = {}
    for point in (*decision.points, *decision.others):
        policy, gain = point.comparison.policy, point.comparison.gain
        is_own = (policy.method, policy.is_fixed) == (decision.policy.method, True)
        if is_own and policy.length is not None and gain is not None:
            curves.setdefault(point.load, {}).setdefault(policy.length, gain)
    curves = {load: curves[load] for load in sorted(curves) if len(curves[load]) > 1}
    if not curves:
        return None
    lengths = sorted({length for curve in curves.values() for length in curve})
    rows = tuple(
        (str(length), *(interval(curve.get(length)) for curve in curves.values()))
        for length in lengths
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for number, (load, curve) in enumerate(curves.items()):
            _draw_curve(
                axes,
                sorted(curve),
                [curve[length] for length in sorted(curve)],
                number,
                load.short_label,
            )
        _line_at_one(axes)
        axes.set_xlabel("draft tokens per step, at most")
        axes.set_ylabel("speedup")
        axes.set_xticks(lengths)
        legend_below(canvas)

    best = {
        load: max(curve, key=lambda length: curve[length].value) for load, curve in curves.items()
    }
    told = [
        f"{load.short_label}: best {length}, {inline(curves[load][length])}"
        for load, length in best.items()
    ]
    return picture(
        name,
        f"{decision.policy.method}: {decision.workload.label}",
        "Speedup of fixed draft lengths, with 95% intervals. Lengths whose intervals overlap cannot be told apart.",
        f"Speedup of {decision.policy.method} by draft length on {decision.workload.label}. {'; '.join(told)}.",
        Table(("Draft tokens", *(load.short_label for load in curves)), rows),
        draw,
    )


def predicted(comparisons: Sequence[Comparison], name: str) -> Picture | None:
    """What each folder's own step times allow against what decoding reached."""
    found = [
        (c, c.ideal, c.decode) for c in comparisons if c.ideal is not None and c.decode is not None
    ]
    if not found:
        return None
    methods = sorted({c.policy.method for c, _, _ in found})
    rows = tuple(
        (
            f"{c.policy.label}; {c.workload.label}; {c.load.label}",
            figure(ideal),
            interval(decode) if decode.has_interval else figure(decode.value),
            figure(decode.value / ideal if ideal else None),
        )
        for c, ideal, decode in found
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for number, method in enumerate(methods):
            own = [(ideal, decode) for c, ideal, decode in found if c.policy.method == method]
            ends = _ends([decode for _, decode in own])
            axes.errorbar(
                [ideal for ideal, _ in own],
                [decode.value for _, decode in own],
                yerr=ends,
                fmt=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                label=method,
                alpha=0.85,
            )
        most = 1.08 * max(max(ideal, decode.high or decode.value) for _, ideal, decode in found)
        axes.plot(
            [0, most], [0, most], color=PLAIN, linestyle="--", linewidth=1, label="as predicted"
        )
        axes.set(
            xlim=(0, most),
            ylim=(0, most),
            xlabel="speedup that the step times allow",
            ylabel="speedup measured",
        )
        legend_below(canvas)

    worst = min(decode.value / ideal for _, ideal, decode in found if ideal)
    return picture(
        name,
        "Predicted and measured",
        "Predicted: plain decoding's pass time per token over the method's draft and pass time per token, without what the host "
        "does besides. Measured: decoding alone, without prefill. A point below the line loses the difference to the host.",
        f"{len(found)} measurements against the speedup that their own step times allow; the measured speedup is at least "
        f"{worst:.2f} of the predicted one.",
        Table(("Measurement", "Predicted", "Measured", "Measured / predicted"), rows),
        draw,
        height=3.2,
    )


def _bases(found: Collection[str]) -> str:
    """Where latency is compared, throughput is of loads that are too much."""
    latencies = [
        words for basis, words in BASES.items() if basis in found and basis != "throughput"
    ]
    throughput = [BASES["throughput"]] if "throughput" in found else []
    return "; overloaded: ".join(
        [*(["; without rows: ".join(latencies)] if latencies else []), *throughput]
    )


def _series(decision: Decision) -> dict[Policy, dict[Load, Point]]:
    """The recommended policy first, controllers before fixed lengths, those of its method before others."""
    found: dict[Policy, dict[Load, Point]] = {decision.policy: {p.load: p for p in decision.points}}

    def order(point: Point) -> tuple[bool, bool, str, int]:
        policy = point.comparison.policy
        return (
            policy.is_fixed,
            policy.method != decision.policy.method,
            policy.variant,
            policy.length or 0,
        )

    for point in sorted(decision.others, key=order):
        found.setdefault(point.comparison.policy, {})[point.load] = point
    return found


def _draw_lines(
    canvas: Figure,
    axes: Axes,
    series: dict[Policy, dict[Load, Point]],
    loads: list[Load],
    own: Policy,
) -> None:
    coloured = list(series)[:MOST_SERIES]
    for number, (policy, points) in enumerate(series.items()):
        known = {load: points[load].comparison.gain for load in loads if load in points}
        at = [loads.index(load) for load, gain in known.items() if gain is not None]
        gains = [gain for gain in known.values() if gain is not None]
        if policy in coloured:
            _draw_curve(axes, at, gains, number, policy.label, strong=policy == own)
        else:
            label = "others, see the table" if policy == list(series)[MOST_SERIES] else None
            axes.plot(
                at,
                [gain.value for gain in gains],
                color=PLAIN,
                linewidth=0.8,
                alpha=0.7,
                label=label,
            )
    _line_at_one(axes)
    axes.set_xticks(range(len(loads)), [load.amount_label for load in loads])
    axes.set_xlim(-0.3, len(loads) - 0.7)
    axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]))
    legend_below(canvas)


def _draw_curve(
    axes: Axes,
    at: Sequence[int],
    gains: Sequence[Estimate],
    number: int,
    label: str,
    *,
    strong: bool = False,
) -> None:
    axes.errorbar(
        at,
        [gain.value for gain in gains],
        yerr=_ends(gains),
        label=label,
        linewidth=2.2 if strong else 1.3,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
    )


def _draw_rows(axes: Axes, points: dict[Policy, Point]) -> None:
    for place, point in enumerate(reversed(points.values())):
        gain = point.comparison.gain
        number = len(points) - 1 - place
        if gain is None:
            continue
        axes.errorbar(
            [gain.value],
            [place],
            xerr=_ends([gain]),
            fmt=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            linewidth=2,
        )
    axes.set_yticks(range(len(points)), [_wrapped(policy.label) for policy in reversed(points)])
    axes.set_ylim(-0.6, len(points) - 0.4)
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--")
    axes.grid(visible=False, axis="y")


def _wrapped(label: str) -> str:
    return label.replace(", ", ",\n", 1).replace(" (", "\n(", 1)


def _line_at_one(axes: Axes) -> None:
    axes.axhline(1, color=TEXT, linewidth=1, linestyle="--", zorder=1)


def _ends(estimates: Sequence[Estimate]) -> np.ndarray:
    """Lengths of error bars, 0 where there is no interval."""
    return np.array(
        [
            [e.value - (e.value if e.low is None else e.low) for e in estimates],
            [(e.value if e.high is None else e.high) - e.value for e in estimates],
        ]
    ).clip(min=0)
