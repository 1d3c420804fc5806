"""The summary of a multirun: one comparable row per job in summary.csv, a table, and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from specresearch.bench.estimate import Estimate
from specresearch.bench.outcome import EXPLANATION, Outcome, describe_interval
from specresearch.bench.output_verdict import outputs_of
from specresearch.files import replace_text
from specresearch.results.folder import RESULTS, read_results
from specresearch.rows import METHOD
from specresearch.sweeps.plot import plot_sweep

SUMMARY, PLOT = "summary.csv", "summary.png"
GROUPS = ("proposer", "dataset", "target", "acceptance", "controller", "scheduler", "arrivals")
# figures of each side of a load run that its summary lacks
SIDE_FIGURES = ("throughput", "e2el_p50", "tpot_p99")
RATE = "accepted"  # meaningless for trees
LOAD_COLUMNS = {
    "of best": "speedup_over_best",
    "best": "best_fixed",
    "TPOT p99": "tpot_p99_ratio",
    RATE: "draft_acceptance_rate",
}
RUN_COLUMNS = {
    "tokens/s": "tokens_per_second",
    RATE: "draft_acceptance_rate",
    "per forward": "tokens_per_target_forward",
}
TIME_RATIOS = ("TPOT p99",)  # method / plain decoding, shown the other way round
RUN_NOTES = "accepted: draft acceptance rate, of chains. per forward: tokens per target forward."
LOAD_NOTES = (
    "of best: speedup over the better of plain decoding and `best`, the best fixed length. TPOT "
    "p99: speedup by the 99th percentile of the time per output token. accepted: draft acceptance "
    "rate, of chains."
)
SAME = (
    "same: whether outputs are plain decoding's but for rounding (unknown: not all differences "
    "were examined; lossy: the acceptance rule may change them)."
)


class CompareRuns(Callback):
    """A Hydra callback that summarises multiruns."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        rows = collect(folder)
        if rows:
            replace_text(folder / SUMMARY, pd.DataFrame(rows).to_csv(index=False))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        rows = collect(folder)
        if rows:
            print_comparison(rows, Console(highlight=False))
            print(f"{folder}/{SUMMARY}")
            if plot_sweep(rows, folder / PLOT):
                print(f"{folder}/{PLOT}")


def collect(folder: Path) -> list[dict[str, Any]]:
    """Return one flat row per job with results: overrides and the plain figures of its summary."""

    def job_order(path: Path) -> tuple[int, Path]:
        number = path.parent.name.split("-")[0]
        return len(number), path

    rows = []
    for path in sorted(folder.glob(f"*/{RESULTS}"), key=job_order):
        results = read_results(path.parent)
        if results is not None:
            rows.append(_row(path.parent, results))
    return rows


def _row(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "job": folder.name,
        "overrides": " ".join(_read_overrides(folder)),
        "complete": results["complete"],
    }
    figures = dict(results["summary"])
    if results.get("kind") in ("load", "simulation"):
        row |= {"kind": "load", "stopped": results["stopped"]}
        for name, interval in results["intervals"].items():
            figures[f"{name}_ci95"] = interval
        for side, side_figures in results["sides"].items():
            for name in SIDE_FIGURES:
                figures[f"{name}_{side}"] = side_figures[name]
    comparison = (results.get("comparisons") or {}).get(METHOD)
    if comparison is not None and comparison["gain"] is not None:
        gain = comparison["gain"]
        row |= {"gain": gain["value"], "gain_low": gain["low"], "gain_high": gain["high"]}
        row["gain_basis"] = comparison["basis"]
    provenance = results.get("provenance") or {}
    row["trees"] = bool((provenance.get("method") or {}).get("trees"))
    row["caveats"] = ", ".join(provenance.get("caveats") or ())
    output = outputs_of(results).get(METHOD)
    row["same"] = output and output.verdict and output.verdict.value
    for name, value in figures.items():
        if name.endswith("_ci95"):
            row[f"{name}_low"] = value and value[0]
            row[f"{name}_high"] = value and value[1]
        elif not isinstance(value, list | dict):
            row[name] = value
    return row


def _read_overrides(folder: Path) -> Sequence[str]:
    file = folder / ".hydra" / "overrides.yaml"
    if not file.exists():
        return ()
    return yaml.safe_load(file.read_text(encoding="utf-8")) or ()


def print_comparison(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of the jobs, each named by the overrides that not all of them share."""
    columns, notes = RUN_COLUMNS, RUN_NOTES
    if any(row.get("kind") == "load" for row in rows):
        columns, notes = LOAD_COLUMNS, LOAD_NOTES
    is_lossy = any(row.get("output_tv") is not None for row in rows)
    gains = [_gain(row) for row in rows]
    cells: dict[str, list[str]] = {"speedup": [_format(gain and gain.value) for gain in gains]}
    cells["95%"] = [describe_interval(gain, "-") for gain in gains]
    cells["verdict"] = ["-" if gain is None else Outcome.of(gain).value for gain in gains]
    for header, name in columns.items():
        cells[header] = [_cell(row, header, name) for row in rows]
    cells["same"] = [row.get("same") or "-" for row in rows]
    if is_lossy:
        cells["TV"] = [_format(row.get("output_tv"), 3) for row in rows]
    shared = set.intersection(*(set(row["overrides"].split()) for row in rows))
    names = [_name(row, shared) for row in rows]
    header, *lines = _aligned(cells)
    width = max(map(len, names))
    # Long names stand above their figures, so that no line is longer than the terminal is wide.
    is_wide = width + 2 + len(header) > console.width
    console.print()
    console.print(Text(header if is_wide else f"{'':{width}}  {header}", style="bold"))
    for name, line in zip(names, lines, strict=True):
        console.print(Text(f"{name}\n{line}" if is_wide else f"{name:{width}}  {line}"))
    moved = " TV: total variation by which a lossy rule moved the output." if is_lossy else ""
    console.print(f"{EXPLANATION} {notes} {SAME}{moved}", style="dim")
    for row in rows:
        if row.get("stopped"):
            console.print(f"{row['job']}: {row['stopped']}", style="yellow")


def _aligned(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line of headers and a line for each row, with columns flush right."""
    padded = []
    for header, values in columns.items():
        width = max(map(len, (header, *values)))
        padded.append([f"{word:>{width}}" for word in (header, *values)])
    return [" ".join(words) for words in zip(*padded, strict=True)]


def _gain(row: Mapping[str, Any]) -> Estimate | None:
    """Return the speedup: by throughput or, under open arrivals, by latency."""
    return Estimate(row["gain"], row["gain_low"], row["gain_high"]) if "gain" in row else None


def _cell(row: Mapping[str, Any], header: str, name: str) -> str:
    value = row.get(name)
    if header == RATE and row.get("trees"):
        return "-"
    return _format(1 / value if header in TIME_RATIOS and value else value)


def _name(row: Mapping[str, Any], shared: set[str]) -> str:
    varied = [word for word in row["overrides"].split() if word not in shared]
    name = " ".join(map(short_override, varied)) or row["job"]
    return f"{name} ({row['caveats']})" if row.get("caveats") else name


def short_override(override: str) -> str:
    """Shorten an override: `ngram` for `+proposer=ngram`, `n_max=3` for `proposer.n_max=3`."""
    key, _, value = override.partition("=")
    group, _, name = key.removeprefix("+").rpartition(".")
    return value if not group and name in GROUPS else f"{name}={value}"


def _format(value: float | str | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.{digits}f}" if value < 100 else f"{value:,.0f}"
