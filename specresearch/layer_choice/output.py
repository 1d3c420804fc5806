"""The curve of acceptance and speed by depth: printed, drawn, and written to files."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from specresearch.layer_choice.curve import EXIT, SKIP, Depth, fastest
from specresearch.models.layer_view import Sublayers, lists_of

EXPLANATION = (
    "cost: a draft token, in passes of the target over one token. break-even: the acceptance that "
    "this cost asks for. +: what is left out beside the row above. speedup: predicted over plain "
    "decoding, above 1 is faster, without prefill and host costs."
)
NAMES = {EXIT: "early exit", SKIP: "skipped one by one"}


def print_curve(depths: Sequence[Depth], console: Console | None = None) -> None:
    """Print every depth, and whether one is predicted to pay."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("drafting without", no_wrap=True)
    temperatures = list(depths[0].acceptance)
    accepted = [f"accepted, T={temperature:g}" for temperature in temperatures]
    for header in ("cost", *accepted, "break-even", "drafts", "speedup"):
        table.add_column(header, justify="right")
    for depth, name in zip(depths, _names(depths), strict=True):
        table.add_row(
            name,
            f"{depth.cost:.2f}",
            *(f"{depth.acceptance[temperature]:.2f}" for temperature in temperatures),
            f"{depth.break_even:.2f}",
            str(depth.num_draft_tokens),
            f"{depth.speedup:.2f}",
        )
    console.print(table)
    console.print(EXPLANATION, style="dim")
    best = fastest(depths)
    console.print(f"fastest: without {best.skipped}")
    if best.speedup < 1:
        console.print("No depth is predicted to be faster than plain decoding.", style="bold")


def _names(depths: Sequence[Depth]) -> Iterator[str]:
    """Yield what each depth leaves out; of sublayers chosen one by one, the newest."""
    before = Sublayers()
    for depth in depths:
        if depth.way == EXIT:
            yield f"layers from {min(depth.skipped.attention)} on"
        else:
            newest = str(depth.skipped - before)
            yield f"+ {newest}" if before else newest
            before = depth.skipped


def save_curve(
    depths: Sequence[Depth], num_layers: int, measured: Mapping[str, Any], output: Path
) -> None:
    """Write the fastest depth as JSON for proposer.skip_file, and beside it a table and a picture.

    Args:
        measured: Target, times and texts of the measurement.
    """
    best = fastest(depths)
    content = {
        **lists_of(best.skipped),
        "num_layers": num_layers,
        "predicted_speedup": best.speedup,
        "num_draft_tokens": best.num_draft_tokens,
        "measured": dict(measured),
        "depths": [depth.row() for depth in depths],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with output.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(depths[0].row()))
        writer.writeheader()
        writer.writerows(_joined(depth.row()) for depth in depths)
    draw_curve([depth.row() for depth in depths], num_layers).savefig(
        output.with_suffix(".png"), dpi=150
    )


def draw_curve(
    rows: Sequence[Mapping[str, Any]],
    num_layers: int,
    speedups: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Draw acceptance and speed by the share of sublayers that drafting runs.

    Args:
        rows: As `Depth.row` returns them.
        speedups: Measured points to add, by their name: share of sublayers run, and speedup.
    """
    figure = Figure(figsize=(7, 7), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    ways = list(dict.fromkeys(row["way"] for row in rows))
    for way in ways:
        own = [row for row in rows if row["way"] == way]
        shares = [1 - _num_skipped(row) / (2 * num_layers) for row in own]
        for name in (name for name in own[0] if name.startswith("acceptance_t")):
            temperature = name.removeprefix("acceptance_t")
            label = f"{NAMES[way]}, temperature {temperature}"
            top.plot(shares, [row[name] for row in own], ".-", label=label)
        style = "--" if way == EXIT else ":"
        needed = [row["break_even"] for row in own]
        top.plot(shares, needed, style, color="0.45", label=f"{NAMES[way]}: break-even")
        predicted = [row["predicted_speedup"] for row in own]
        bottom.plot(shares, predicted, ".-", label=f"{NAMES[way]}, predicted")
    for name, points in (speedups or {}).items():
        bottom.plot(*zip(*points, strict=True), "x", label=f"{name}, measured")
    bottom.axhline(1, color="0.45", linestyle="--", label="break-even: plain decoding")
    top.set_ylabel("acceptance of a draft")
    top.set_ylim(0, 1.05)
    bottom.set_ylabel("speedup over plain decoding")
    bottom.set_xlabel("share of the target's sublayers that drafting runs")
    for axes in (top, bottom):
        axes.legend(frameon=False, fontsize=8)
    return figure


def _num_skipped(row: Mapping[str, Any]) -> int:
    return len(row["skip_attention"]) + len(row["skip_mlp"])


def _joined(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with lists as words, for a CSV file."""
    return {
        name: " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }
