"""Where the time of a step goes, plainly and with the method."""

from matplotlib.figure import Figure

from specresearch.reporting.comparisons import PARTS, Comparison, Side
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import (
    COLOURS,
    PAGE,
    PLAIN,
    Picture,
    Table,
    legend_below,
    picture,
)
from specresearch.reporting.wording import NOTHING, figure, seconds

MEANINGS = {
    "propose": "drafting",
    "verify": "the target's pass",
    "accept": "accepting",
    "commit": "keeping what was accepted",
    "control": "choosing draft lengths",
    "schedule": "scheduling",
    "host": "everything else",
}
ORDER = [
    part
    for part in ("verify", "propose", "accept", "commit", "control", "schedule", "host")
    if part in PARTS
]
MOST_LOADS = 3
BEHIND = {"facecolor": PAGE, "edgecolor": "none", "pad": 1.0}


def step_times(decision: Decision, name: str) -> Picture | None:
    """Two bars per load, of at most three loads; None where no times were kept."""
    timed = [
        p.comparison for p in decision.points if p.comparison.plain.step and p.comparison.own.step
    ]
    if not timed:
        return None
    chosen = timed if len(timed) <= MOST_LOADS else [timed[0], timed[len(timed) // 2], timed[-1]]
    bars = [(label, side) for c in chosen for label, side in _bars(c)]
    present = [part for part in ORDER if any(side.step.get(part) for _, side in bars)]
    rows = tuple(
        (
            label,
            *(seconds(side.step.get(part)) if part in side.step else NOTHING for part in present),
            seconds(sum(side.step.values())),
            figure(side.tokens_per_step),
        )
        for c in timed
        for label, side in _bars(c)
    )
    most = max(sum(side.step.values()) for _, side in bars)
    scale, unit = (1e3, "ms") if most < 1 else (1.0, "s")

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for place, (_, side) in enumerate(reversed(bars)):
            left = 0.0
            for number, part in enumerate(present):
                width = side.step.get(part, 0.0) * scale
                colour = PLAIN if part == "host" else COLOURS[number % len(COLOURS)]
                label = MEANINGS[part] if place == 0 else None
                axes.barh(
                    place,
                    width,
                    left=left,
                    color=colour,
                    label=label,
                    height=0.62,
                    edgecolor=PAGE,
                    linewidth=0.5,
                )
                left += width
            if side.tokens_per_step is not None:
                words = (
                    "1 token"
                    if round(side.tokens_per_step, 1) == 1
                    else f"{side.tokens_per_step:.1f} tokens"
                )
                axes.annotate(
                    words,
                    (left, place),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                    bbox=BEHIND,
                )
        axes.set_yticks(range(len(bars)), [label for label, _ in reversed(bars)])
        axes.set_xlim(0, most * scale * 1.28)
        axes.set_xlabel(f"{unit} per step")
        axes.grid(visible=False, axis="y")
        legend_below(canvas)

    told = [
        f"{label}: {seconds(sum(side.step.values()))} for {figure(side.tokens_per_step, 1)} tokens"
        for label, side in bars
    ]
    note = (
        ""
        if len(timed) <= MOST_LOADS
        else " The lowest, a middle and the highest load; the table has all."
    )
    return picture(
        name,
        decision.workload.label,
        f"A step with {decision.policy.label}, and a plain one; beside the bars, the tokens it yields for all running requests. "
        f"Prefill is not in it.{note}",
        f"Time of a step on {decision.workload.label}. {'; '.join(told)}.",
        Table(
            ("Side", *(MEANINGS[part] for part in present), "whole step", "tokens per step"), rows
        ),
        draw,
        height=0.8 + 0.36 * len(bars),
    )


def _bars(comparison: Comparison) -> list[tuple[str, Side]]:
    load = comparison.load.short_label
    return [(f"plain, {load}", comparison.plain), (f"method, {load}", comparison.own)]
