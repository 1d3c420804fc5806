"""A mixed workload by class: who gains, and who pays."""

from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import COLOURS, TEXT, Picture, Table, legend_below, picture
from specresearch.reporting.wording import NOTHING, interval, listed, seconds

SIGNATURES = {True: "median better, slowest worse", False: NOTHING, None: "cannot be said"}
MEDIAN, SLOWEST = "tpot_p50", "tpot_p99"


def by_class(comparison: Comparison, name: str) -> Picture | None:
    """Time per output token of every class over plain decoding's, median and 99th percentile."""
    ratios = {change.name: (change.median, change.slowest) for change in comparison.classes}
    known = {
        label: (p50, p99)
        for label, (p50, p99) in ratios.items()
        if p50 is not None and p99 is not None
    }
    if not known:
        return None
    rows = tuple(
        (
            change.name,
            *(
                f"{seconds(change.plain.get(key))} → {seconds(change.own.get(key))}"
                for key in (MEDIAN, SLOWEST)
            ),
            *(interval(ratio) for ratio in ratios[change.name]),
            SIGNATURES[change.has_signature],
        )
        for change in comparison.classes
    )

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        labels = list(reversed(known))
        for place, label in enumerate(labels):
            median, slowest = known[label]
            for ratio, offset, colour, marker, word in (
                (median, 0.12, COLOURS[0], "o", "P50"),
                (slowest, -0.12, COLOURS[1], "^", "P99"),
            ):
                if ratio.low is not None and ratio.high is not None:
                    axes.plot(
                        [ratio.low, ratio.high],
                        [place + offset] * 2,
                        color=colour,
                        linewidth=2,
                        alpha=0.5,
                    )
                label_once = word if place == 0 else None
                axes.plot(
                    ratio.value,
                    place + offset,
                    marker,
                    color=colour,
                    label=label_once,
                    markersize=7,
                )
        axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", label="plain decoding")
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_xlabel("TPOT over plain decoding's; below 1 is faster")
        axes.grid(visible=False, axis="y")
        legend_below(canvas)

    signature = [change.name for change in comparison.classes if change.has_signature]
    unclear = [change.name for change in comparison.classes if change.has_signature is None]
    found = f"Median better but slowest worse for {listed(signature)}." if signature else ""
    if unclear:
        found += f" Of {listed(unclear)} it cannot be said whether the slowest requests pay for the median."
    found = found.strip() or "No class whose median improved while its slowest requests got worse."
    told = "; ".join(
        f"{label}: P50 {interval(median)}, P99 {interval(slowest)} of plain decoding's"
        for label, (median, slowest) in known.items()
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
