"""A multirun of certificates ends with one table: a row per method, a column per rule."""

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
AXES = ("+proposer", "acceptance")


class CertificateMatrix(Callback):
    """A Hydra callback; single runs do not concern it."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        rows = collect(folder)
        if rows:
            replace_text(folder / MATRIX, pd.DataFrame(rows).to_csv(index=False))
            print_matrix(rows, Console(highlight=False))
            print(f"{folder}/{MATRIX}")


def collect(folder: Path) -> list[dict[str, Any]]:
    """One flat row per certificate of the multirun, in the order of its jobs.

    variant: the overrides by which jobs of one method and rule differ. Total variations are the worst of the
    method's own drafts, in the trials that see most.
    """
    paths = sorted(
        folder.glob(f"*/{CERTIFICATE}"), key=lambda path: int(path.parent.name.split("-")[0])
    )
    overrides = [_overrides(path.parent) for path in paths]
    shared = set.intersection(*map(set, overrides)) if overrides else set()
    rows = []
    for path, given in zip(paths, overrides, strict=True):
        told = json.loads(path.read_text(encoding="utf-8"))
        own = [test for test in told["sampled"] if not test["stress"]]
        sharpest = min((test["asked_tv"] for test in own), default=None)
        fits = [test["fit"] for test in own if test["asked_tv"] == sharpest]
        rows.append(
            {
                "method": told["method"],
                "variant": " ".join(
                    word for word in given if word not in shared and word.split("=")[0] not in AXES
                ),
                "rule": told["rule"],
                "verdict": told["verdict"],
                "tv_low": max((fit["tv_low"] for fit in fits), default=None),
                "tv_high": max((fit["tv_high"] for fit in fits), default=None),
                "num_samples": sum(test["fit"]["num_samples"] for test in own),
                "job": path.parent.name,
                "statement": told["statement"],
            }
        )
    return rows


def _overrides(job: Path) -> list[str]:
    file = job / ".hydra" / "overrides.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else []


def print_matrix(rows: list[dict[str, Any]], console: Console) -> None:
    cells = {(row["method"], row["variant"], row["rule"]): row for row in rows}
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for rule in rules:
        table.add_column(rule)
    for method, variant in dict.fromkeys((row["method"], row["variant"]) for row in rows):
        table.add_row(
            f"{method} {variant}".strip(),
            *(_cell(cells.get((method, variant, rule))) for rule in rules),
        )
    console.print()
    console.print(table)


def _cell(row: dict[str, Any] | None) -> Text:
    if row is None:
        return Text("-")
    words = row["verdict"]
    if row["tv_low"]:
        words = f"TV {row['tv_low']:.2f} to {row['tv_high']:.2f}"
    elif words == CERTIFIED and not row["num_samples"]:
        words += ", greedy only"
    return Text(words, style=STYLES[row["verdict"]])
