"""What a controller reckoned with, beside what came of it."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from specresearch.reporting.comparisons import Trace
from specresearch.reporting.drawing import COLOURS, PLAIN, Picture, Table, legend_below, picture
from specresearch.reporting.wording import figure

PANELS = {
    "ms a step": ({"measured_seconds": "measured", "estimated_seconds": "estimated"}, 1e3),
    "acceptance": ({"acceptance": "estimated acceptance"}, 1.0),
    "requests": ({"num_requests": "running", "num_shut": "shut: no drafts for them"}, 1.0),
    "drafts a step": ({"num_made": "drafts made", "num_verified": "drafts verified"}, 1.0),
}  # what is told -> figures of a trace and their words, and the scale they are drawn in
NEEDED = (
    "measured_seconds",
    "acceptance",
    "num_shut",
    "num_made",
)  # without which a panel says nothing
MOST_ROWS = 40  # of the table


def thoughts(own: Trace, name: str) -> Picture | None:
    """Its own figures over the steps of every pass; None of a controller that wrote down none of them."""
    told = own.thoughts
    panels = {
        label: (words, scale)
        for (label, (words, scale)), needed in zip(PANELS.items(), NEEDED, strict=True)
        if any(needed in row for row in told)
    }
    if not panels:
        return None
    passes = [
        [row for row in told if row.get("repeat", 0.0) == repeat] for repeat in _repeats(told)
    ]
    columns = {
        key: (words, scale)
        for words_of, scale in panels.values()
        for key, words in words_of.items()
    }

    def draw(canvas: Figure) -> None:
        every = canvas.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (label, (words, scale)) in zip(every, panels.items(), strict=True):
            for (key, word), colour in zip(
                words.items(), (PLAIN, COLOURS[0])[-len(words) :], strict=True
            ):
                for number, rows in enumerate(passes):
                    steps = [row["step"] for row in rows if key in row]
                    values = [scale * row[key] for row in rows if key in row]
                    marker = "o" if len(steps) == 1 else None
                    axes.plot(
                        steps,
                        values,
                        color=colour,
                        marker=marker,
                        linewidth=1.3,
                        label=None if number else word,
                    )
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        every[-1].set_xlabel("the controller's steps")
        legend_below(canvas)

    every = -(-len(told) // MOST_ROWS) or 1
    rows = tuple(
        (
            f"{row.get('repeat', 0.0) + 1:.0f}, {row['step']:.0f}",
            *(
                figure(scale * row[key] if key in row else None)
                for key, (_, scale) in columns.items()
            ),
        )
        for row in told[::every]
    )
    means = [
        f"{words} {figure(_mean(told, key, scale))}" for key, (words, scale) in columns.items()
    ]
    units = " Times are milliseconds." if "ms a step" in panels else ""
    return picture(
        name,
        f"{own.workload.label}, {own.load.label}",
        f"What {own.policy.label} reckoned with, averaged over stretches of steps, a line for each of {len(passes)} "
        f"pass{'es' if len(passes) > 1 else ''}. On average: {', '.join(means)}.{units}",
        f"What the controller reckoned with on {own.workload.label} at {own.load.label}, on average: {', '.join(means)}.{units}",
        Table(
            ("Pass, step", *(f"{words[0].upper()}{words[1:]}" for words, _ in columns.values())),
            rows,
        ),
        draw,
        height=0.5 + 1.1 * len(panels),
    )


def _repeats(rows: Sequence[Mapping[str, float]]) -> list[float]:
    return list(dict.fromkeys(row.get("repeat", 0.0) for row in rows))


def _mean(rows: Sequence[Mapping[str, float]], key: str, scale: float) -> float | None:
    values = [scale * row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else None
