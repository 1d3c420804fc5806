"""Where the time of a step goes, on the baseline and with the method."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specresearch.bench.side_comparison import StepTimes
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import (
    COLOURS,
    PAGE,
    PLAIN,
    Picture,
    Table,
    draw_picture,
    legend_below,
)
from specresearch.reporting.formatting import NOTHING, figure, seconds, time_scale

HOST = "host"
MEANINGS = {
    "verify": "the target's pass",
    "propose": "drafting",
    "accept": "accepting",
    "commit": "keeping what was accepted",
    "control": "choosing draft lengths",
    "schedule": "scheduling",
    HOST: "everything else",
}
MOST_LOADS = 3
LABEL_BOX = {"facecolor": PAGE, "edgecolor": "none", "pad": 1.0}

Bar = tuple[str, StepTimes]


def step_times(decision: Decision, name: str) -> Picture | None:
    """Return two bars per load, for at most three loads; None if no times were kept."""
    by_load = [_bars(point.comparison) for point in decision.points]
    by_load = [bars for bars in by_load if bars]
    if not by_load:
        return None
    shown, note = by_load, ""
    if len(by_load) > MOST_LOADS:
        shown = [by_load[0], by_load[len(by_load) // 2], by_load[-1]]
        note = " The lowest, a middle and the highest load; the table has all."
    bars = [bar for load in shown for bar in load]
    parts = [part for part in MEANINGS if any(step.parts.get(part) for _, step in bars)]
    rows = []
    for label, step in [bar for load in by_load for bar in load]:
        cells = [seconds(step.parts[part]) if part in step.parts else NOTHING for part in parts]
        rows.append((label, *cells, seconds(step.seconds), figure(step.tokens)))
    totals = []
    for label, step in bars:
        totals.append(f"{label}: {seconds(step.seconds)} for {figure(step.tokens, 1)} tokens")
    return draw_picture(
        name,
        title=decision.workload.label,
        caption=f"A step with {decision.policy.label}, and a plain one; beside the bars, the "
        f"tokens it yields for all running requests. Prefill is not in it.{note}",
        alt=f"Time of a step on {decision.workload.label}. {'; '.join(totals)}.",
        table=Table(
            ("Side", *(MEANINGS[part] for part in parts), "whole step", "tokens per step"),
            tuple(rows),
        ),
        draw=lambda canvas: _draw(canvas, bars, parts),
        height=0.8 + 0.36 * len(bars),
    )


def _bars(comparison: Comparison) -> list[Bar]:
    """Return both sides of a comparison, or none if the times of one are unknown."""
    baseline, speculative = (side.step for side in comparison.sides)
    if baseline is None or speculative is None:
        return []
    load = comparison.load.short_label
    return [(f"plain, {load}", baseline), (f"method, {load}", speculative)]


def _draw(canvas: Figure, bars: list[Bar], parts: list[str]) -> None:
    axes = canvas.subplots()
    longest = max(step.seconds for _, step in bars)
    scale, unit = time_scale(longest)
    for row, (_, step) in enumerate(reversed(bars)):
        _draw_bar(axes, row, step, parts, scale)
    axes.set_yticks(range(len(bars)), [label for label, _ in reversed(bars)])
    axes.set_xlim(0, longest * scale * 1.28)
    axes.set_xlabel(f"{unit} per step")
    axes.grid(visible=False, axis="y")
    legend_below(canvas)


def _draw_bar(axes: Axes, row: int, step: StepTimes, parts: list[str], scale: float) -> None:
    left = 0.0
    for number, part in enumerate(parts):
        width = step.parts.get(part, 0.0) * scale
        axes.barh(
            row,
            width,
            left=left,
            color=PLAIN if part == HOST else COLOURS[number % len(COLOURS)],
            label=MEANINGS[part] if row == 0 else None,
            height=0.62,
            edgecolor=PAGE,
            linewidth=0.5,
        )
        left += width
    tokens = "1 token" if round(step.tokens, 1) == 1 else f"{step.tokens:.1f} tokens"
    axes.annotate(
        tokens,
        xy=(left, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        bbox=LABEL_BOX,
    )
