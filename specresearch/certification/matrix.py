"""Summarize a multirun of certificates in one table: a row per method, a column per rule."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specresearch.certification.certificate import CERTIFICATE, CERTIFIED, STYLES
from specresearch.files import replace_text

MATRIX = "matrix.csv"
AXES = ("+proposer=", "acceptance=")


class CertificateMatrix(Callback):
    """A Hydra callback that writes and prints the matrix at the end of a multirun."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        rows = collect(folder)
        if rows:
            replace_text(folder / MATRIX, pd.DataFrame(rows).to_csv(index=False))
            print_matrix(rows, Console(highlight=False))
            print(f"{folder}/{MATRIX}")


def collect(folder: Path) -> list[dict[str, Any]]:
    """Return one flat row per certificate of the multirun, in the order of its jobs.

    `variant` holds the overrides that tell jobs of one method and rule apart.
    """
    paths = sorted(folder.glob(f"*/{CERTIFICATE}"), key=_job_order)
    overrides = [_overrides(path.parent) for path in paths]
    shared = set.intersection(*map(set, overrides)) if overrides else set()
    rows = []
    for path, words in zip(paths, overrides, strict=True):
        certificate = json.loads(path.read_text(encoding="utf-8"))
        variant = [w for w in words if w not in shared and not w.startswith(AXES)]
        rows.append(_row(path.parent.name, certificate, " ".join(variant)))
    return rows


def _job_order(path: Path) -> tuple[int, str]:
    """Sort by job number; folders named without one come last."""
    number = path.parent.name.partition("-")[0]
    return (int(number) if number.isdecimal() else 1 << 31, path.parent.name)


def _row(job: str, certificate: dict[str, Any], variant: str) -> dict[str, Any]:
    """Return a row whose total variations are the worst of the sharpest trials."""
    tests = [test for test in certificate["sampled"] if not test["stress"]]
    sharpest = min((test["asked_tv"] for test in tests), default=None)
    fits = [test["fit"] for test in tests if test["asked_tv"] == sharpest]
    return {
        "method": certificate["method"],
        "variant": variant,
        "rule": certificate["rule"],
        "verdict": certificate["verdict"],
        "tv_low": max((fit["tv_low"] for fit in fits), default=None),
        "tv_high": max((fit["tv_high"] for fit in fits), default=None),
        "num_samples": sum(test["fit"]["num_samples"] for test in tests),
        "job": job,
        "statement": certificate["statement"],
    }


def _overrides(job: Path) -> list[str]:
    file = job / ".hydra" / "overrides.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else []


def print_matrix(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the verdict of every method with every rule."""
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    by_method: dict[str, dict[str, Text]] = {}
    for row in rows:
        method = f"{row['method']} {row['variant']}".strip()
        by_method.setdefault(method, {})[row["rule"]] = _cell(row)
    table = Table("", *rules, box=None, pad_edge=False, header_style="bold")
    for method, cells in by_method.items():
        table.add_row(method, *(cells.get(rule, Text("-")) for rule in rules))
    console.print()
    console.print(table)


def _cell(row: dict[str, Any]) -> Text:
    words = row["verdict"]
    if row["tv_low"]:
        words = f"TV {row['tv_low']:.2f} to {row['tv_high']:.2f}"
    elif words == CERTIFIED and not row["num_samples"]:
        words += ", greedy only"
    return Text(words, style=STYLES[row["verdict"]])
