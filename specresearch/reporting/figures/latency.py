"""Latencies of plain decoding and of the method, at every load: median, 90th and 99th percentile, and the user's limit."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from specresearch.reporting.comparisons import Side
from specresearch.reporting.decision import Decision, Limits
from specresearch.reporting.drawing import (
    COLOURS,
    PLAIN,
    TEXT,
    Picture,
    Table,
    legend_below,
    picture,
)
from specresearch.reporting.wording import loads_listed, seconds, seconds_with_interval

PERCENTS = {50: "o", 90: "_", 99: "^"}
TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between tokens",
    "e2el": "Time to the last token",
}
MEANINGS = {
    "ttft": "from a request's arrival to its first token, waiting included",
    "tpot": "a request's time after its first token, per token",
    "itl": "between two tokens as delivered; speculation delivers several at once, then pauses for longer",
    "e2el": "from a request's arrival to its last token, waiting included",
}
LOGARITHMIC_FROM = 30.0  # largest over smallest


def latencies(decision: Decision, metric: str, limits: Limits, name: str) -> Picture | None:
    """None where either side lacks the figures. Loads at which neither keeps up are left out."""
    names = {percent: f"{metric}_p{percent}" for percent in PERCENTS}
    lost = [p.load for p in decision.points if p.comparison.neither_keeps_up]
    points = [
        p
        for p in decision.points
        if p.load not in lost
        and all(s[n] for s in (p.comparison.plain, p.comparison.own) for n in names.values())
    ]
    if not points:
        return None
    limit = getattr(limits, metric, None)
    sides = {"plain decoding": (-0.13, PLAIN), decision.policy.label: (0.13, COLOURS[0])}
    margin = 0.6 if len(points) > 1 else 0.9
    header = ("Load", *(f"{side}, P{p}" for side in ("plain", "method") for p in PERCENTS))
    rows = tuple(
        (
            point.load.label,
            *(
                seconds_with_interval(side[names[percent]])
                for side in (point.comparison.plain, point.comparison.own)
                for percent in PERCENTS
            ),
        )
        for point in points
    )

    def values(side: Side, scale: float) -> list[float]:
        found = [side[name] for name in names.values()]
        return [figure.value * scale for figure in found if figure is not None]

    most = max(
        max(values(side, 1.0)) for p in points for side in (p.comparison.plain, p.comparison.own)
    )
    scale, unit = (1e3, "ms") if most < 1 else (1.0, "s")

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for place, point in enumerate(points):
            both = (point.comparison.plain, point.comparison.own)
            for side, (offset, colour) in zip(both, sides.values(), strict=True):
                shown = values(side, scale)
                at = place + offset
                axes.plot(
                    [at, at], [min(shown), max(shown)], color=colour, linewidth=2.2, alpha=0.55
                )
                for value, marker in zip(shown, PERCENTS.values(), strict=True):
                    axes.plot(
                        [at],
                        [value],
                        marker=marker,
                        color=colour,
                        markersize=8 if marker == "_" else 5.5,
                        mew=2,
                    )
        if limit is not None:
            axes.axhline(limit * scale, color=TEXT, linewidth=1, linestyle=":")
        axes.set_xticks(range(len(points)), [point.load.amount_label for point in points])
        axes.set_xlim(-margin, len(points) - 1 + margin)
        axes.grid(visible=False, axis="x")
        highest = axes.get_ylim()[1]
        smallest = min(
            min(values(side, scale))
            for p in points
            for side in (p.comparison.plain, p.comparison.own)
        )
        if smallest > 0 and highest / smallest > LOGARITHMIC_FROM:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(0, highest * 1.04)
        axes.set_xlabel(points[0].load.unit)
        axes.set_ylabel(f"{metric.upper()}, {unit}")
        handles = [
            Line2D([], [], color=colour, linewidth=3, label=label)
            for label, (_, colour) in sides.items()
        ]
        handles += [
            Line2D(
                [],
                [],
                color=TEXT,
                marker=marker,
                linestyle="",
                label=f"P{percent}",
                markersize=6,
                mew=2,
            )
            for percent, marker in PERCENTS.items()
        ]
        if limit is not None:
            handles.append(
                Line2D([], [], color=TEXT, linestyle=":", label=f"limit, {seconds(limit)}")
            )
        legend_below(canvas, handles)

    told = [
        f"{p.load.amount_label}: median {seconds(_value(p.comparison.plain, names[50]))} became "
        f"{seconds(_value(p.comparison.own, names[50]))}, P99 {seconds(_value(p.comparison.plain, names[99]))} became "
        f"{seconds(_value(p.comparison.own, names[99]))}"
        for p in points
    ]
    figures = [
        side[name]
        for p in points
        for side in (p.comparison.plain, p.comparison.own)
        for name in names.values()
    ]
    intervals = (
        " The table has the intervals."
        if any(one is not None and one.has_interval for one in figures)
        else ""
    )
    left_out = (
        f" Neither side keeps up with {loads_listed(lost)}, which is left out." if lost else ""
    )
    return picture(
        name,
        f"{metric.upper()}: {decision.workload.label}",
        f"{TITLES[metric]}: {MEANINGS[metric]}.{intervals}{left_out}",
        f"{TITLES[metric]} by {points[0].load.unit} on {decision.workload.label}. {'; '.join(told)}.",
        Table(header, rows),
        draw,
    )


def _value(side: Side, name: str) -> float | None:
    figure = side[name]
    return figure.value if figure else None
