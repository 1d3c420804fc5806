"""How many drafts were accepted: by request, and by position in the draft."""

from specresearch.reporting.comparison import Comparison
from specresearch.reporting.drawing import COLOURS, GRID, TEXT, Canvas, Picture, TextTable
from specresearch.reporting.formatting import interval

BREAK_EVEN = (0.5, 0.65)
MOST_TICKS = 12
CURVES = {
    "unconditional": "accepted, of all drafts",
    "conditional": "accepted, given all before were",
}


def histogram(comparison: Comparison, name: str) -> Picture | None:
    """Return requests by the share of their drafts that was accepted."""
    acceptance = comparison.speculative.acceptance
    if acceptance is None or sum(map(bool, acceptance.histogram.counts)) < 2:
        return None
    canvas = Canvas()
    axes = canvas.subplots()
    axes.axvspan(
        *BREAK_EVEN, color=GRID, alpha=0.6, linewidth=0, label="break-even, by rule of thumb"
    )
    edges, counts = acceptance.histogram.edges, acceptance.histogram.counts
    shares = [100 * count / sum(counts) for count in counts]
    axes.stairs(shares, edges, fill=True, color=COLOURS[0], alpha=0.85)
    p10, rate = acceptance.p10, acceptance.rate
    if p10 is not None:
        axes.axvline(p10.value, color=COLOURS[1], linewidth=2, label=f"P10: {p10.value:.2f}")
    if rate is not None:
        label = f"of all drafts: {rate.value:.2f}"
        axes.axvline(rate.value, color=TEXT, linewidth=1.5, linestyle="--", label=label)
    axes.set(xlim=(0, 1), ylim=(0, 100))
    axes.set(xlabel="share of a request's drafts accepted", ylabel="% of requests")
    rows = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        rows.append([f"{low:.1f} to {high:.1f}", str(count)])
    return canvas.picture(
        name,
        title=comparison.setting.label,
        caption=f"{comparison.scene}. P10: a tenth of the requests are below {interval(p10)}; of "
        f"all draft tokens {interval(rate)} were accepted.",
        alt=f"Histogram of requests by acceptance for {_subject(comparison)}: 10th percentile "
        f"{interval(p10)}, all drafts {interval(rate)}.",
        table=TextTable(["Share accepted", "Requests"], rows),
    )


def by_position(comparison: Comparison, name: str) -> Picture | None:
    """Return the chance that the draft at a position is accepted.

    One curve is of all drafts, the other of those whose earlier positions were all accepted.
    """
    acceptance = comparison.speculative.acceptance
    if acceptance is None or len(acceptance.positions) < 2:
        return None
    rows, survivals = [], []
    for at in acceptance.positions:
        shares = interval(at.unconditional), interval(at.conditional)
        rows.append([str(at.position), *shares, f"{at.num_reached:,}"])
        survivals.append(f"{at.position}: {shares[0]}")
    canvas = Canvas()
    axes = canvas.subplots()
    for (key, label), colour, marker in zip(CURVES.items(), COLOURS, "os", strict=False):
        positions, shares = [], []
        for at in acceptance.positions:
            share = getattr(at, key)
            if share is not None:
                positions.append(at.position)
                shares.append(share)
        values = [share.value for share in shares]
        axes.plot(positions, values, color=colour, marker=marker, label=label)
        if all(share.has_interval for share in shares):
            lows, highs = [share.low for share in shares], [share.high for share in shares]
            axes.fill_between(positions, lows, highs, color=colour, alpha=0.18, linewidth=0)
    axes.set(ylim=(0, 1.03), xlabel="position in the draft", ylabel="share accepted")
    numbers = [at.position for at in acceptance.positions]
    every = 1 if len(numbers) <= MOST_TICKS else -(-len(numbers) // 8)
    axes.set_xticks(numbers[::every])
    return canvas.picture(
        name,
        title=comparison.setting.label,
        caption=f"{comparison.scene}. Of all drafts: what a longer draft still brings. Given "
        "all before: whether the drafter still follows.",
        alt=f"Acceptance by position for {_subject(comparison)}, of all drafts: "
        f"{', '.join(survivals)}.",
        table=TextTable(
            ["Position", "Of all drafts", "Given all before", "Drafts that reached it"], rows
        ),
    )


def _subject(comparison: Comparison) -> str:
    return f"{comparison.setting.label} on {comparison.scene}"
