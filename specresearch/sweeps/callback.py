"""A multirun leaves one comparable row per job: summary.csv in the sweep's folder, a table at the end, and a plot."""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from specresearch.files import replace_text
from specresearch.results.folder import RESULTS, read_results
from specresearch.sweeps.plot import plot_sweep

SUMMARY, PLOT = "summary.csv", "summary.png"
GROUPS = ("proposer", "dataset", "target", "acceptance", "controller", "scheduler", "arrivals")
SIDE_FIGURES = (
    "throughput",
    "e2el_p50",
    "tpot_p99",
)  # of the sides of a load run that its summary leaves out
LOAD_COLUMNS = {
    "of best": "speedup_over_best",
    "best": "best_fixed",
    "tok/s": "throughput",
    "E2EL": "e2el_p50_ratio",
    "TPOT p99": "tpot_p99_ratio",
    "acc.": "draft_acceptance_rate",
}
RUN_COLUMNS = {
    "tokens/s": "tokens_per_second",
    "accepted": "draft_acceptance_rate",
    "per forward": "tokens_per_target_forward",
}


class CompareRuns(Callback):
    """A Hydra callback; single runs do not concern it."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
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
    """One flat row per job that has results: its folder, overrides, and every plain figure of its summary."""
    rows = []
    for path in sorted(
        folder.glob(f"*/{RESULTS}"), key=lambda path: (len(path.parent.name.split("-")[0]), path)
    ):
        results = read_results(path.parent)
        if results is None:
            continue
        overrides = path.parent / ".hydra" / "overrides.yaml"
        told = yaml.safe_load(overrides.read_text(encoding="utf-8")) if overrides.exists() else None
        row: dict[str, Any] = {
            "job": path.parent.name,
            "overrides": " ".join(told or ()),
            "complete": results["complete"],
        }
        figures = results["summary"]
        if results.get("kind") in ("load", "simulation"):
            row |= {"kind": "load", "stopped": results["stopped"]}
            figures = figures | {
                f"{name}_ci95": between for name, between in results["intervals"].items()
            }
            figures |= {
                f"{name}_{side}": told[name]
                for side, told in results["sides"].items()
                for name in SIDE_FIGURES
            }
        for name, value in figures.items():
            if name.endswith("_ci95"):
                row |= {f"{name}_low": value and value[0], f"{name}_high": value and value[1]}
            elif not isinstance(value, list | dict):
                row[name] = value
        rows.append(row)
    return rows


def print_comparison(rows: list[dict[str, Any]], console: Console) -> None:
    shared = set.intersection(*(set(row["overrides"].split()) for row in rows))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("run")
    columns = dict(LOAD_COLUMNS if any(row.get("kind") == "load" for row in rows) else RUN_COLUMNS)
    is_lossy = any(row.get("output_tv") is not None for row in rows)
    for name in ("speedup", "95%", *columns, "same", *(["TV"] if is_lossy else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        own = " ".join(
            short_override(word) for word in row["overrides"].split() if word not in shared
        )
        low, high = row.get("speedup_ci95_low"), row.get("speedup_ci95_high")
        table.add_row(
            own or row["job"],
            _number(row.get("speedup")),
            f"{low:.2f}-{high:.2f}" if low and high else "-",
            *(_number(row.get(name)) for name in columns.values()),
            {True: "yes", False: "NO"}.get(row.get("outputs_equal"), "-"),  # type: ignore[arg-type]
            *([_number(row.get("output_tv"), 3)] if is_lossy else []),
        )
    console.print()
    console.print(table)
    for row in rows:
        if row.get("stopped"):
            console.print(f"{row['job']}: {row['stopped']}", style="yellow")


def short_override(override: str) -> str:
    """`ngram` for `+proposer=ngram`, `n_max=3` for `proposer.n_max=3`."""
    key, _, value = override.partition("=")
    group, _, name = key.removeprefix("+").rpartition(".")
    return value if not group and name in GROUPS else f"{name}={value}"


def _number(value: int | float | str | None, digits: int = 2) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:,.{digits}f}" if value < 100 else f"{value:,.0f}"
