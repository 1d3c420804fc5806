"""Where the time of a step goes, on the baseline and with the method."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from specresearch.bench.side_comparison import MeanStepTimes
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import COLOURS, PAGE, PLAIN, Canvas, Picture, TextTable
from specresearch.reporting.formatting import figure, seconds, time_scale

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


def step_times(decision: Decision, name: str) -> Picture | None:
    """Return two bars per load, for at most three loads; None if no times were kept."""
    steps: dict[str, MeanStepTimes] = {}
    for point in decision.points:
        baseline, speculative = (side.step for side in point.sides)
        if baseline is not None and speculative is not None:
            steps[f"plain, {point.load.short_label}"] = baseline
            steps[f"method, {point.load.short_label}"] = speculative
    if not steps:
        return None
    shown, note = list(steps), ""
    num_loads = len(steps) // 2
    if num_loads > MOST_LOADS:
        middle = 2 * (num_loads // 2)
        shown = [*shown[:2], *shown[middle : middle + 2], *shown[-2:]]
        note = " The lowest, a middle and the highest load; the table has all."
    bars = {label: steps[label] for label in shown}
    parts = [part for part in MEANINGS if any(step.parts.get(part) for step in bars.values())]
    rows = []
    for label, step in steps.items():
        cells = [seconds(step.parts.get(part)) for part in parts]
        rows.append([label, *cells, seconds(step.seconds), figure(step.tokens)])
    totals = []
    for label, step in bars.items():
        totals.append(f"{label}: {seconds(step.seconds)} for {figure(step.tokens, 1)} tokens")
    canvas = Canvas(0.8 + 0.36 * len(bars))
    _draw(canvas.subplots(), bars, parts)
    return canvas.picture(
        name,
        title=decision.workload.label,
        caption=f"A step with {decision.setting.label}, and a plain one; beside the bars, the "
        f"tokens it yields for all running requests. Prefill is not in it.{note}",
        alt=f"Time of a step on {decision.workload.label}. {'; '.join(totals)}.",
        table=TextTable(
            ["Side", *(MEANINGS[part] for part in parts), "whole step", "tokens per step"], rows
        ),
    )


def _draw(axes: Axes, bars: Mapping[str, MeanStepTimes], parts: Sequence[str]) -> None:
    longest = max(step.seconds for step in bars.values())
    scale, unit = time_scale(longest)
    ends = [0.0] * len(bars)
    for number, part in enumerate(parts):
        widths = [scale * step.parts.get(part, 0.0) for step in bars.values()]
        axes.barh(
            range(len(bars)),
            widths,
            left=ends,
            color=PLAIN if part == HOST else COLOURS[number % len(COLOURS)],
            label=MEANINGS[part],
            height=0.62,
            edgecolor=PAGE,
            linewidth=0.5,
        )
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for row, (step, end) in enumerate(zip(bars.values(), ends, strict=True)):
        axes.annotate(
            "1 token" if round(step.tokens, 1) == 1 else f"{step.tokens:.1f} tokens",
            xy=(end, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            bbox=LABEL_BOX,
        )
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, longest * scale * 1.28)
    axes.set_xlabel(f"{unit} per step")
    axes.grid(visible=False, axis="y")
