"""What a simulation foresaw, over what was measured."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specresearch.reporting.drawing import (
    COLOURS,
    MARKERS,
    TEXT,
    Picture,
    Table,
    legend_below,
    picture,
)
from specresearch.reporting.simulation_folder import Foreseen
from specresearch.reporting.wording import NOTHING, figure, interval, seconds, seconds_with_interval

FIGURES = {
    "throughput": "tokens/s",
    "ttft_p50": "TTFT P50",
    "ttft_p99": "TTFT P99",
    "tpot_p50": "TPOT P50",
    "tpot_p99": "TPOT P99",
}
MOST_ROWS = 12  # drawn


def foreseen(found: Sequence[Foreseen], name: str) -> Picture | None:
    """Predicted over measured figures of every setting that was both; None of none."""
    if not found:
        return None
    rows = tuple(_row(one) for one in found)
    shown = list(found[:MOST_ROWS])

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots()
        for number, (key, label) in enumerate(FIGURES.items()):
            offset = 0.12 * (number - (len(FIGURES) - 1) / 2)
            known = [
                (place, ratio)
                for place, one in enumerate(reversed(shown))
                if (ratio := _ratio(one, key)) is not None
            ]
            axes.plot(
                [ratio for _, ratio in known],
                [place - offset for place, _ in known],
                linestyle="",
                marker=MARKERS[number],
                color=COLOURS[number],
                label=label,
            )
        axes.axvline(1, color=TEXT, linewidth=1, linestyle="--", label="as measured")
        axes.set_yticks(
            range(len(shown)), [_label(one).replace("; ", "\n") for one in reversed(shown)]
        )
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlabel("predicted over measured")
        axes.grid(visible=False, axis="y")
        legend_below(canvas)

    errors = {
        key: [abs(ratio - 1) for one in found if (ratio := _ratio(one, key)) is not None]
        for key in FIGURES
    }
    told = ", ".join(
        f"{FIGURES[key]} {max(values):.0%}" for key, values in errors.items() if values
    )
    more = (
        ""
        if len(shown) == len(found)
        else f" The first {len(shown)} are drawn; the table has all {len(found)}."
    )
    return picture(
        name,
        "Foreseen by simulation",
        f"What simulations foresaw of settings that were measured, too. Largest errors: {told}.{more}",
        f"{len(found)} predictions of simulations over what was measured; largest errors: {told}.",
        Table(
            ("Setting", *(f"{label}, predicted and measured" for label in FIGURES.values())), rows
        ),
        draw,
        height=0.9 + 0.62 * len(shown),
    )


def _label(one: Foreseen) -> str:
    return f"{one.measured.policy.label}; {one.measured.workload.data}, {one.measured.load.short_label}"


def _row(one: Foreseen) -> tuple[str, ...]:
    cells = []
    for key in FIGURES:
        guess, measured = one.prediction.own.get(key), one.measured.own[key]
        if guess is None or measured is None or _ratio(one, key) is None:
            cells.append(NOTHING)
        elif key == "throughput":
            cells.append(f"{figure(guess, 1)}; {interval(measured, 1)}")
        else:
            cells.append(f"{seconds(guess)}; {seconds_with_interval(measured)}")
    return f"{_label(one)}; {one.measured.workload.label}", *cells


def _ratio(one: Foreseen, key: str) -> float | None:
    """None where either is not known, and of latencies that grow for as long as a queue does."""
    guess, measured = one.prediction.own.get(key), one.measured.own[key]
    if one.measured.is_overloaded and key != "throughput":
        return None
    return (
        guess / measured.value
        if guess is not None and measured is not None and measured.value
        else None
    )
