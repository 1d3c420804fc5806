"""Print the table of a run within 100 columns, and keep it as Markdown."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tabulate import tabulate

from specresearch.files import replace_text
from specresearch.penalties.folder import PenaltyResults
from specresearch.penalties.summary import POINTS

TABLE = "table.md"
TARGETS = {
    "target": "target",
    "weight_bytes": "weights, MB",
    "read_bytes": "read, MB",
    "kl": "KL from full, nats",
    "tv": "total variation",
    "agreement": "same first choice",
}
CELLS = {
    "target": "target",
    "draft": "draft",
    "temperature": "T",
    "read_bytes": "read, MB",
    "acceptance": "acceptance",
    "points_lost": "points lost",
    "within_rule": f"<= {POINTS:g}",
    "length": "length",
    "foretold_tokens_per_step": "foretold",
    "tokens_per_step": "tokens/step",
    "speedup": "speedup",
}
DIGITS = {"acceptance": 3, "agreement": 3, "tv": 3, "kl": 4, "points_lost": 1}
EXPLANATION = (
    "Compare cells of one target only: another target is another model. Read: weights that a "
    "token reads. Acceptance is "
    "teacher-forced on the target's own text; tokens a step and speedup over plain decoding are "
    "decoded at the length that was fastest in a trial. Rule of thumb from the field, not from "
    f"this run: a quantised draft is worth having while it loses at most {POINTS:g} points. "
    "Outputs are those of the target as it is quantised; the draft's precision does not change "
    "them."
)


def print_penalties(results: PenaltyResults, folder: Path, console: Console | None = None) -> None:
    """Print the tables of targets and of pairs.

    Args:
        folder: The run's folder, which the last line names.
    """
    console = console or Console(highlight=False)
    for rows, columns in ((results.summary["targets"], TARGETS), (results.summary["cells"], CELLS)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in columns.values():
            table.add_column(header)
        for row in rows:
            cells = [shown(row, name) for name in columns]
            table.add_row(*(re.sub(r" \((.*) to ", r"\n\1..", cell).rstrip(")") for cell in cells))
        console.print(table)
        console.print()
    console.print(EXPLANATION, style="dim")
    unfinished = "" if results.complete else "unfinished run: "
    console.print(f"{unfinished}{folder}/results.json holds every figure with its definition")


def save_table(results: PenaltyResults, folder: Path) -> None:
    """Write both tables to table.md."""
    parts = []
    for rows, columns in ((results.summary["targets"], TARGETS), (results.summary["cells"], CELLS)):
        cells = [[shown(row, name) for name in columns] for row in rows]
        headers = list(columns.values())
        parts.append(tabulate(cells, headers, tablefmt="github", disable_numparse=True))
    replace_text(folder / TABLE, "\n\n".join([*parts, EXPLANATION]) + "\n")


def shown(row: Mapping[str, Any], name: str) -> str:
    """Return a figure as tables show it, with its interval if it has one."""
    value, interval = row.get(name), row.get(f"{name}_ci95")
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.1f}"
    if name in ("length", "temperature"):
        return f"{value:g}"
    digits = DIGITS.get(name, 2)
    words = f"{value:.{digits}f}"
    if interval:
        low, high = interval
        words += f" ({low:.{digits}f} to {high:.{digits}f})"
    return words
