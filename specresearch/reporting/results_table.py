"""A table of measured settings, as Markdown, LaTeX, CSV or plain text."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from specresearch.bench.estimate import Estimate
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.formatting import NOTHING, interval
from specresearch.reporting.workload import Load
from specresearch.results.folder import read_results
from specresearch.settings.check import nearest

FORMATS = {"markdown": "pipe", "latex": "latex_booktabs", "text": "simple", "csv": ""}

Value = str | int | Load | Estimate | None


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        value: What it holds of a row; None if that is unknown.
        digits: Decimals of a figure; None for columns of text.
    """

    header: str
    value: Callable[[Comparison], Value]
    digits: int | None = None

    def cell(self, row: Comparison) -> str:
        """Return the value as a person reads it."""
        value = self.value(row)
        if isinstance(value, Estimate):
            return interval(value, self.digits or 0).removesuffix(" (no interval)")
        if isinstance(value, Load):
            return value.label
        return NOTHING if value is None else str(value)

    def record(self, name: str, row: Comparison) -> dict[str, str | float | None]:
        """Return the value as a program reads it, interval included."""
        value = self.value(row)
        if not self.digits:
            return {name: self.cell(row)}
        ends = {f"{name}_low": getattr(value, "low", None)}
        ends[f"{name}_high"] = getattr(value, "high", None)
        return {name: getattr(value, "value", None), **ends}


def _figure(name: str) -> Callable[[Comparison], Value]:
    return lambda row: row.speculative[name]


def _acceptance_length(row: Comparison) -> Estimate | None:
    """Return the mean acceptance length, which a run keeps in its summary."""
    estimate = row.speculative["mean_acceptance_length"]
    if estimate is not None:
        return estimate
    results = read_results(row.folder) or {}
    stated = results.get("intervals", {}).get("mean_acceptance_length", {})
    return Estimate.of(stated.get("value"), stated.get("ci95"))


def _acceptance_rate(row: Comparison) -> Estimate | None:
    profile = row.speculative.acceptance
    return None if profile is None else profile.rate


def _method(row: Comparison) -> str:
    """Return the method, marked where its figures compare speeds only."""
    caveats = row.workload.caveats
    return f"{row.setting.method} ({caveats})" if caveats else row.setting.method


COLUMNS: Mapping[str, Column] = {
    "method": Column("Method", _method),
    "dataset": Column("Dataset", lambda row: row.workload.data),
    "target": Column("Target", lambda row: row.workload.target_name),
    "machine": Column("Machine", lambda row: row.workload.machine),
    "load": Column("Load", lambda row: row.load),
    "sampling": Column("Sampling", lambda row: row.workload.sampling),
    "answer_tokens": Column("Answer tokens, at most", lambda row: row.workload.max_new_tokens, 0),
    "drafting": Column("Drafting", lambda row: row.setting.how),
    "speedup": Column("Speedup", lambda row: row.gain, 2),
    "tokens_per_second": Column("Tokens/s", _figure("throughput"), 1),
    "baseline_tokens_per_second": Column(
        "Tokens/s, plain", lambda row: row.baseline["throughput"], 1
    ),
    "acceptance_length": Column("Acceptance length", _acceptance_length, 2),
    "acceptance_rate": Column("Acceptance rate", _acceptance_rate, 2),
    "ttft_p99": Column("TTFT P99, s", _figure("ttft_p99"), 3),
    "tpot_p99": Column("TPOT P99, s", _figure("tpot_p99"), 4),
    "unchanged": Column(
        "Output unchanged", lambda row: row.output.verdict and row.output.verdict.value
    ),
    "requests": Column("Requests", lambda row: row.num_requests, 0),
    "folder": Column("Folder", lambda row: row.folder.name),
}
IF_DIFFERENT = ("answer_tokens",)  # shown by default only where rows differ in them
DEFAULT = (
    "method",
    "dataset",
    "target",
    "load",
    "sampling",
    "answer_tokens",
    "drafting",
    "speedup",
    "tokens_per_second",
    "acceptance_length",
    "unchanged",
)


def results_table(
    comparisons: Sequence[Comparison],
    format: str = "markdown",
    columns: Sequence[str] | None = None,
    sort: str | None = None,
) -> str:
    """Return a table with a row for each comparison.

    Args:
        format: One of `FORMATS`. In CSV, a figure's interval has columns of its own.
        columns: Names in `COLUMNS`; None takes `DEFAULT`.
        sort: Column to sort by, figures from high to low; None keeps the order.

    Raises:
        ValueError: If there is no such column.
    """
    rows = list(comparisons)
    columns = _default_columns(rows) if columns is None else columns
    for name in [*columns, *([sort] if sort else [])]:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name}{nearest(name, COLUMNS)}")
    if sort is not None:
        rows = _sorted(rows, COLUMNS[sort])
    chosen = [COLUMNS[name] for name in columns]
    if format == "csv":
        return _to_csv(rows, dict(zip(columns, chosen, strict=True)))
    table = [[column.cell(row) for column in chosen] for row in rows]
    if format == "markdown":
        table = [[cell.replace("|", "\\|") for cell in cells] for cells in table]
    text = tabulate(
        table,
        headers=[column.header for column in chosen],
        tablefmt=FORMATS[format],
        colalign=["left" if column.digits is None else "right" for column in chosen],
        disable_numparse=True,
    )
    return text + "\n"


def _default_columns(rows: Sequence[Comparison]) -> list[str]:
    columns = []
    for name in DEFAULT:
        cells = {COLUMNS[name].cell(row) for row in rows}
        if name not in IF_DIFFERENT or len(cells) > 1:
            columns.append(name)
    return columns


def _sorted(rows: Sequence[Comparison], column: Column) -> list[Comparison]:
    """Sort rows by a column; those without a value come last."""
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    return sorted(known, key=lambda row: _sort_key(column.value(row))) + unknown


def _sort_key(value: Value) -> tuple[str, float]:
    """Return what sorts texts and loads from low to high, and figures from high to low."""
    if isinstance(value, Load):
        return value.axis, value.amount
    if isinstance(value, Estimate):
        return "", -value.value
    if isinstance(value, int):
        return "", -float(value)
    return str(value), 0.0


def _to_csv(rows: Sequence[Comparison], columns: Mapping[str, Column]) -> str:
    records = []
    for row in rows:
        record = {}
        for name, column in columns.items():
            record |= column.record(name, row)
        records.append(record)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()
