"""How many drafts were accepted: by request, and by position in the draft."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specresearch.bench.acceptance_profile import AcceptanceProfile, Position
from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.drawing import (
    COLOURS,
    GRID,
    TEXT,
    Picture,
    Table,
    draw_picture,
    legend_below,
)
from specresearch.reporting.formatting import interval

BREAK_EVEN = (0.5, 0.65)
MOST_TICKS = 12


def histogram(comparison: Comparison, name: str) -> Picture | None:
    """Return requests by the share of their drafts that was accepted."""
    acceptance = comparison.speculative.acceptance
    if acceptance is None or not sum(acceptance.histogram.counts):
        return None
    edges, counts = acceptance.histogram.edges, acceptance.histogram.counts
    rows = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        rows.append((f"{low:.1f} to {high:.1f}", str(count)))
    p10, rate = interval(acceptance.p10), interval(acceptance.rate)
    return draw_picture(
        name,
        title=comparison.policy.label,
        caption=f"{comparison.scene}. P10: a tenth of the requests lie below {p10}; of all "
        f"draft tokens {rate} were accepted.",
        alt=f"Histogram of requests by acceptance for {_setting(comparison)}: 10th percentile "
        f"{p10}, all drafts {rate}.",
        table=Table(("Share accepted", "Requests"), tuple(rows)),
        draw=lambda canvas: _draw_histogram(canvas, acceptance),
    )


def by_position(comparison: Comparison, name: str) -> Picture | None:
    """Return the chance that the draft at a position is accepted.

    One curve is of all drafts, the other of those whose earlier positions were all accepted.
    """
    acceptance = comparison.speculative.acceptance
    if acceptance is None or not acceptance.positions:
        return None
    rows, survivals = [], []
    for at in acceptance.positions:
        shares = interval(at.unconditional), interval(at.conditional)
        rows.append((str(at.position), *shares, f"{at.num_reached:,}"))
        survival = "unknown" if at.unconditional is None else f"{at.unconditional.value:.2f}"
        survivals.append(f"{at.position}: {survival}")
    header = ("Position", "Of all drafts", "Given all before", "Drafts that reached it")
    return draw_picture(
        name,
        title=comparison.policy.label,
        caption=f"{comparison.scene}. Of all drafts: what a longer draft still brings. Given "
        "all before: whether the drafter still follows.",
        alt=f"Acceptance by position for {_setting(comparison)}, of all drafts: "
        f"{', '.join(survivals)}.",
        table=Table(header, tuple(rows)),
        draw=lambda canvas: _draw_positions(canvas, acceptance.positions),
    )


def _setting(comparison: Comparison) -> str:
    return f"{comparison.policy.label} on {comparison.scene}"


def _draw_histogram(canvas: Figure, acceptance: AcceptanceProfile) -> None:
    axes = canvas.subplots()
    rule = "break-even, by rule of thumb"
    axes.axvspan(*BREAK_EVEN, color=GRID, alpha=0.6, linewidth=0, label=rule)
    edges, counts = acceptance.histogram.edges, acceptance.histogram.counts
    widths = np.diff(edges)
    colours = {"color": COLOURS[0], "edgecolor": "none", "alpha": 0.85}
    axes.bar(edges[:-1], counts, widths, align="edge", **colours)
    p10, rate = acceptance.p10, acceptance.rate
    if p10 is not None:
        axes.axvline(p10.value, color=COLOURS[1], linewidth=2, label=f"P10: {p10.value:.2f}")
    if rate is not None:
        label = f"of all drafts: {rate.value:.2f}"
        axes.axvline(rate.value, color=TEXT, linewidth=1.5, linestyle="--", label=label)
    axes.set(xlim=(0, 1), xlabel="share of a request's drafts accepted", ylabel="requests")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(canvas)


def _draw_positions(canvas: Figure, positions: Sequence[Position]) -> None:
    axes = canvas.subplots()
    curves = {
        "accepted, of all drafts": [at.unconditional for at in positions],
        "accepted, given all before were": [at.conditional for at in positions],
    }
    numbers = [at.position for at in positions]
    for (label, shares), colour, marker in zip(curves.items(), COLOURS, "os", strict=False):
        known: list[tuple[int, Estimate]] = []
        for number, share in zip(numbers, shares, strict=True):
            if share is not None:
                known.append((number, share))
        xs = [number for number, _ in known]
        ys = [share.value for _, share in known]
        axes.plot(xs, ys, color=colour, marker=marker, label=label)
        bounds = [share.interval for _, share in known if share.interval is not None]
        if known and len(bounds) == len(known):
            lows, highs = zip(*bounds, strict=True)
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, linewidth=0)
    axes.set(ylim=(0, 1.03), xlabel="position in the draft", ylabel="share accepted")
    every = 1 if len(numbers) <= MOST_TICKS else -(-len(numbers) // 8)
    axes.set_xticks(numbers[::every])
    legend_below(canvas)
