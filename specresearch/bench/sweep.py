"""A multirun leaves one comparable row per job: summary.csv in the sweep's folder, and a table at the end."""

import json
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

from specresearch.bench.results import RESULTS

SUMMARY = "summary.csv"
GROUPS = ("proposer", "dataset", "target", "acceptance", "controller")


class CompareRuns(Callback):
    """A Hydra callback; single runs do not concern it."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        folder = Path(config.hydra.sweep.dir)
        rows = collect(folder)
        if rows:
            pd.DataFrame(rows).to_csv(folder / SUMMARY, index=False)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        rows = collect(Path(config.hydra.sweep.dir))
        if rows:
            print_comparison(rows, Console(highlight=False))
            print(f"{config.hydra.sweep.dir}/{SUMMARY}")


def collect(folder: Path) -> list[dict[str, Any]]:
    """One flat row per job that has results: its folder, overrides, and every plain figure of its summary."""
    rows = []
    for path in sorted(folder.glob(f"*/{RESULTS}"), key=lambda path: (len(path.parent.name.split("-")[0]), path)):
        results = json.loads(path.read_text(encoding="utf-8"))
        overrides = path.parent / ".hydra" / "overrides.yaml"
        told = yaml.safe_load(overrides.read_text(encoding="utf-8")) if overrides.exists() else []
        row: dict[str, Any] = {"job": path.parent.name, "overrides": " ".join(told), "complete": results["complete"]}
        for name, value in results["summary"].items():
            if name.endswith("_ci95"):
                row |= {f"{name}_low": value and value[0], f"{name}_high": value and value[1]}
            elif not isinstance(value, list | dict):
                row[name] = value
        rows.append(row)
    return rows


def print_comparison(rows: list[dict[str, Any]], console: Console) -> None:
    shared = set.intersection(*(set(row["overrides"].split()) for row in rows))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    is_lossy = any(row.get("output_tv") is not None for row in rows)
    for name in ("speedup", "95%", "tokens/s", "accepted", "per forward", "same", *(["TV"] if is_lossy else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        own = " ".join(_short(word) for word in row["overrides"].split() if word not in shared)
        low, high = row.get("speedup_ci95_low"), row.get("speedup_ci95_high")
        table.add_row(
            own or row["job"],
            _number(row.get("speedup")),
            f"{low:.2f}-{high:.2f}" if low and high else "-",
            _number(row.get("tokens_per_second")),
            _number(row.get("draft_acceptance_rate")),
            _number(row.get("tokens_per_target_forward")),
            {True: "yes", False: "NO"}.get(row.get("outputs_equal"), "-"),  # type: ignore[arg-type]
            *([_number(row.get("output_tv"), 3)] if is_lossy else []),
        )
    console.print()
    console.print(table)


def _short(override: str) -> str:
    """`ngram` for `+proposer=ngram`, `n_max=3` for `proposer.n_max=3`."""
    key, _, value = override.partition("=")
    group, _, name = key.removeprefix("+").rpartition(".")
    return value if not group and name in GROUPS else f"{name}={value}"


def _number(value: int | float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}" if value < 100 else f"{value:,.0f}"
