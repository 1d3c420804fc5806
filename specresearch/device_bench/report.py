"""One table in Markdown and one file in JSON for all measurements."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specresearch.device_bench.measurement import Measurement
from specresearch.files import replace_text

REHEARSAL = "rehearsal"
WARNING = (
    "**This is a rehearsal on a CPU with tiny shapes. Its figures say that the code runs, and "
    "nothing about any GPU.**"
)
COLUMNS = ("part", "case", "figure", "value", "low to high", "expected", "met", "how")


class Report:
    """The two files of a measurement, written anew whenever there are more figures.

    Args:
        folder: Where they go, under a name with date and device.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, is_rehearsal: bool) -> None:
        self.provenance, self.is_rehearsal = dict(provenance), is_rehearsal
        begun = datetime.now(UTC)
        self.provenance["date"] = begun.isoformat(timespec="seconds")
        name = REHEARSAL if is_rehearsal else str(provenance["device"]["name"])
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.json = folder / f"{begun:%Y-%m-%d-%H%M%S}-{slug}.json"
        self.markdown = self.json.with_suffix(".md")

    def write(self, rows: Sequence[Measurement]) -> None:
        self.json.parent.mkdir(parents=True, exist_ok=True)
        content = {
            REHEARSAL: self.is_rehearsal,
            "provenance": self.provenance,
            "measurements": [
                asdict(row)
                | {"expectation": str(row.expectation or ""), "met": self._is_met(row)}
                | {REHEARSAL: self.is_rehearsal}
                for row in rows
            ],
        }
        replace_text(self.json, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        replace_text(self.markdown, self.text(rows))

    def _is_met(self, row: Measurement) -> bool | None:
        return None if self.is_rehearsal else row.is_met

    def text(self, rows: Sequence[Measurement]) -> str:
        """Return the page in Markdown."""
        device = self.provenance["device"]["name"]
        title = f"# Rehearsal on {device}" if self.is_rehearsal else f"# Measured on {device}"
        lines = [title, ""]
        if self.is_rehearsal:
            lines += [WARNING, ""]
        for name, value in self.provenance.items():
            lines.append(f"- {name}: {_flat(value)}")
        lines += ["", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
        lines += [_row(self._cells(row)) for row in rows]
        return "\n".join(lines) + "\n"

    def _cells(self, row: Measurement) -> list[str]:
        if row.value is None:
            return [row.part, row.case, row.name, "none", "", "", "", row.reason]
        unit = f" {row.unit}" if row.unit else ""
        mark = f" ({REHEARSAL})" if self.is_rehearsal else ""
        spread = "" if row.low == row.high else f"{_number(row.low)} to {_number(row.high)}"
        expected = f"{row.expectation}{unit}" if row.expectation else ""
        met = {None: "", True: "yes", False: "no"}[self._is_met(row)]
        value = f"{_number(row.value)}{unit}{mark}"
        return [row.part, row.case, row.name, value, spread, expected, met, row.how]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_flat(inner)}" for name, inner in value.items())
    return str(value)
