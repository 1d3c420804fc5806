"""A mixed workload by class: who gains, and who pays."""

from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import COLOURS, TEXT, Picture, Table, legend_below, picture
from specresearch.reporting.wording import NOTHING, figure, listed, seconds

MEDIAN, SLOWEST = "tpot_p50", "tpot_p99"


def by_class(comparison: Comparison, name: str) -> Picture | None:
    """Time per output token of every class over plain decoding's, median and 99th percentile."""
    ratios = {change.name: (change.ratio(MEDIAN), change.ratio(SLOWEST)) for change in comparison.classes}
    known = {label: (p50, p99) for label, (p50, p99) in ratios.items() if p50 is not None and p99 is not None}
    if not known:
        return None
    rows = tuple(
        (
            change.name,
            *(f"{seconds(change.plain.get(key))} → {seconds(change.own.get(key))}" for key in (MEDIAN, SLOWEST)),
            *(figure(ratio) for ratio in ratios[change.name]),
            "median better, slowest worse" if change.has_signature else NOTHING,
        )
        for change in comparison.classes
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        labels = list(reversed(known))
        for place, label in enumerate(labels):
            median, slowest = known[label]
            axes.plot([median, slowest], [place, place], color=COLOURS[0], linewidth=2, alpha=0.4)
            axes.plot(median, place, "o", color=COLOURS[0], label="P50" if place == 0 else None, markersize=7)
            axes.plot(slowest, place, "^", color=COLOURS[1], label="P99" if place == 0 else None, markersize=7)
        axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", label="plain decoding")
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_xlabel("TPOT over plain decoding's; below 1 is faster")
        axes.grid(visible=False, axis="y")
        legend_below(canvas)

    signature = [change.name for change in comparison.classes if change.has_signature]
    found = (
        f"Median better but slowest worse for {listed(signature)}."
        if signature
        else ("No class whose median improved while its slowest requests got worse.")
    )
    told = "; ".join(
        f"{label}: P50 {pair[0]:.2f}, P99 {pair[1]:.2f} of plain decoding's" for label, pair in known.items()
    )
    return picture(
        name,
        f"{comparison.workload.label}, {comparison.load.label}",
        f"{comparison.policy.label}. {found}",
        f"Time per output token by class, {told}. {found}",
        Table(("Class", "TPOT P50", "TPOT P99", "P50 ratio", "P99 ratio", "Signature"), rows),
        draw,
        height=1.0 + 0.4 * len(known),
    )
