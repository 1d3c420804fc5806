"""How many drafts were accepted: by request, and by position in the draft."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import (
    COLOURS,
    GRID,
    TEXT,
    Picture,
    Table,
    legend_below,
    picture,
)
from specresearch.reporting.estimates import Estimate
from specresearch.reporting.wording import interval

BREAK_EVEN = (0.5, 0.65)


def histogram(comparison: Comparison, name: str) -> Picture | None:
    """Requests by the share of their drafts that was accepted, with the 10th percentile."""
    told = comparison.own.acceptance
    if told is None or told.histogram is None or not sum(told.histogram.counts):
        return None
    bins, p10, rate = told.histogram, told.p10, told.rate
    rows = tuple(
        (f"{low:.1f} to {high:.1f}", str(count))
        for low, high, count in zip(bins.edges, bins.edges[1:], bins.counts, strict=False)
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        axes.axvspan(
            *BREAK_EVEN, color=GRID, alpha=0.6, linewidth=0, label="break-even, by rule of thumb"
        )
        widths = [high - low for low, high in zip(bins.edges, bins.edges[1:], strict=False)]
        axes.bar(
            bins.edges[:-1],
            bins.counts,
            widths,
            align="edge",
            color=COLOURS[0],
            edgecolor="none",
            alpha=0.85,
        )
        if p10 is not None:
            axes.axvline(p10.value, color=COLOURS[1], linewidth=2, label=f"P10: {p10.value:.2f}")
        if rate is not None:
            axes.axvline(
                rate.value,
                color=TEXT,
                linewidth=1.5,
                linestyle="--",
                label=f"of all drafts: {rate.value:.2f}",
            )
        axes.set(xlim=(0, 1), xlabel="share of a request's drafts accepted", ylabel="requests")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(canvas)

    words = f"{comparison.policy.label} on {comparison.workload.label}, {comparison.load.label}"
    return picture(
        name,
        comparison.policy.label,
        f"{comparison.workload.label}, {comparison.load.label}. P10: a tenth of the requests lie below {interval(p10)}; of all "
        f"draft tokens {interval(rate)} were accepted.",
        f"Histogram of requests by acceptance for {words}: 10th percentile {interval(p10)}, all drafts {interval(rate)}.",
        Table(("Share accepted", "Requests"), rows),
        draw,
    )


def by_position(comparison: Comparison, name: str) -> Picture | None:
    """The chance that the draft at a position is accepted, whatever came before and given that all before were."""
    told = comparison.own.acceptance
    if told is None or not told.positions:
        return None
    positions = [at["position"] for at in told.positions]
    curves = {
        "accepted, of all drafts": [at.get("unconditional") for at in told.positions],
        "accepted, given all before were": [at.get("conditional") for at in told.positions],
    }
    rows = tuple(
        (
            str(at["position"]),
            interval(at.get("unconditional")),
            interval(at.get("conditional")),
            f"{at['num_reached']:,}",
        )
        for at in told.positions
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for (label, values), colour, marker in zip(curves.items(), COLOURS, "os", strict=False):
            shown = [
                (at, value)
                for at, value in zip(positions, values, strict=True)
                if value is not None
            ]
            if not shown:
                continue
            xs = [at for at, _ in shown]
            axes.plot(
                xs, [value.value for _, value in shown], color=colour, marker=marker, label=label
            )
            if all(value.has_interval for _, value in shown):
                axes.fill_between(
                    xs, _lows(shown), _highs(shown), color=colour, alpha=0.18, linewidth=0
                )
        axes.set(ylim=(0, 1.03), xlabel="position in the draft", ylabel="share accepted")
        axes.set_xticks(
            positions if len(positions) <= 12 else positions[:: -(-len(positions) // 8)]
        )
        legend_below(canvas)

    shown = ", ".join(
        f"{at['position']}: {_short(at.get('unconditional'))}" for at in told.positions
    )
    words = f"{comparison.policy.label} on {comparison.workload.label}, {comparison.load.label}"
    return picture(
        name,
        comparison.policy.label,
        f"{comparison.workload.label}, {comparison.load.label}. Of all drafts: what a longer draft still "
        "brings. Given all before: whether the drafter still follows.",
        f"Acceptance by position for {words}, of all drafts: {shown}.",
        Table(("Position", "Of all drafts", "Given all before", "Drafts that reached it"), rows),
        draw,
    )


def _lows(shown: Sequence[tuple[int, Estimate]]) -> list[float]:
    return [value.value if value.low is None else value.low for _, value in shown]


def _highs(shown: Sequence[tuple[int, Estimate]]) -> list[float]:
    return [value.value if value.high is None else value.high for _, value in shown]


def _short(value: Estimate | None) -> str:
    return "unknown" if value is None else f"{value.value:.2f}"
