"""A mixed workload by class: who gains, and who pays."""

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.drawing import Canvas, Picture, TextTable, draw_rows
from specresearch.reporting.formatting import NOTHING, interval, listed, seconds

SIGNATURES = {True: "median better, slowest worse", False: NOTHING, None: "cannot be said"}
HEADER = ["Class", "TPOT P50", "TPOT P99", "P50 ratio", "P99 ratio", "Signature"]


def by_class(comparison: Comparison, name: str) -> Picture | None:
    """Return the time per output token of every class relative to the baseline's."""
    known = [change for change in comparison.classes if change.median and change.slowest]
    if not known:
        return None
    rows = []
    for change in comparison.classes:
        figures = comparison.class_figures[change.name]
        cells = []
        for key in ("tpot_p50", "tpot_p99"):
            before, after = figures["baseline"].get(key), figures["speculative"].get(key)
            cells.append(f"{seconds(before)} → {seconds(after)}")
        cells += [interval(change.median), interval(change.slowest)]
        rows.append([change.name, *cells, SIGNATURES[change.has_signature]])
    ratios = []
    for change in known:
        ratios.append(
            f"{change.name}: P50 {interval(change.median)}, P99 {interval(change.slowest)} of "
            "plain decoding's"
        )
    finding = _finding(comparison)
    canvas = Canvas(1.0 + 0.4 * len(known))
    axes = canvas.subplots()
    series = {
        "P50": [change.median for change in known],
        "P99": [change.slowest for change in known],
    }
    draw_rows(axes, [change.name for change in known], series, reference="plain decoding")
    axes.set_xlabel("TPOT over plain decoding's; below 1 is faster")
    return canvas.picture(
        name,
        title=comparison.scene,
        caption=f"{comparison.setting.label}. {finding}",
        alt=f"Time per output token by class, {'; '.join(ratios)}. {finding}",
        table=TextTable(HEADER, rows),
    )


def _finding(comparison: Comparison) -> str:
    paying = [change.name for change in comparison.classes if change.has_signature]
    unclear = [change.name for change in comparison.classes if change.has_signature is None]
    sentences = []
    if paying:
        sentences.append(f"Median better but slowest worse for {listed(paying)}.")
    if unclear:
        sentences.append(
            f"Of {listed(unclear)} it cannot be said whether the slowest requests pay for the "
            "median."
        )
    if not sentences:
        return "No class whose median improved while its slowest requests got worse."
    return " ".join(sentences)
