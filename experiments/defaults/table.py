"""Write results.csv, table.md and speedups.png from the runs of `run.sh`.

python experiments/defaults/table.py outputs/defaults

Cells of results.csv that these runs lack stay as they are; each says of which commit and day it is,
as far as that was noted. Too few requests have no interval.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from specresearch.bench.folder import RESULTS, STEPS
from specresearch.proposers.draft_shape import DraftShape

HERE = Path(__file__).parent
CELL = ["proposer", "dataset", "temperature", "load"]
ALONE = "alone"
NO_DRAFTS = str(DraftShape(0))
NEAR = 0.15  # of a length that was foretold
FIRST, FEWEST = 400, 150  # steps of a pass; and of a run behind these that tell a share
TICKS = (0.5, 0.7, 1, 1.4, 2, 2.8, 4)


def read_cell(path: Path) -> dict[str, Any]:
    """Return a row: throughput over plain decoding's with its interval, and what was drafted."""
    results = json.loads(path.read_text(encoding="utf-8"))
    dataset, load = path.parent.parent.name.rsplit("-", 1)
    proposer, temperature = path.parent.name.rsplit("-temperature", 1)
    interval = results["intervals"].get("speedup")
    if isinstance(interval, dict):  # of `run`
        interval = interval["ci95"]
    low, high = interval or (math.nan, math.nan)
    method = results["provenance"].get("method") or {}
    shape = method.get("shape") or {}
    return {
        "proposer": proposer,
        "dataset": dataset,
        "temperature": float(temperature),
        "load": load,
        "speedup": results["summary"]["speedup"],
        "low": low,
        "high": high,
        "drafts": _drafts(shape),
        "predicted_speedup": shape.get("predicted_speedup"),
        "predicted_length": shape.get("acceptance_length"),
        "length": results["summary"].get("mean_acceptance_length"),
        "efficiency": results["summary"].get("efficiency"),
        "host_overhead": results["summary"].get("host_overhead"),
        "control": _control(results),
        "control_later": _control_later(path.with_name(STEPS)),
        "commit": (results["provenance"]["git_commit"] or "")[:7],
        "day": results["provenance"]["started"][:10],
    }


def _drafts(shape: dict[str, Any]) -> str:
    return str(DraftShape.from_json(shape["shape"])) if shape else ""


def _control(results: dict[str, Any]) -> float:
    """Return the share of the time of steps that deciding and learning took, if anything did."""
    parts = results.get("step_times", {}).get("method", {}).get("parts", {})
    return parts["control"] / sum(parts.values()) if "control" in parts else math.nan


def _control_later(path: Path) -> float:
    """Return the same of the steps behind the first of each pass, if there are enough.

    Interrupted runs have no steps yet, and `auto` alone decides nothing.
    """
    if not path.exists() or path.parent.parent.name.endswith(ALONE):
        return math.nan
    steps = pd.read_parquet(path, columns=["side", "repeat", "control", "total"])
    steps = steps[steps["side"] == "method"]
    later = steps[steps.groupby("repeat").cumcount() >= FIRST]
    return later["control"].sum() / later["total"].sum() if len(later) >= FEWEST else math.nan


def foretold(rows: pd.DataFrame) -> str:
    """Return a table of what `auto` chose and foretold, beside what was measured then."""
    alone = rows[rows["load"] == ALONE]
    lines = [
        "| method | dataset, temperature | `auto` chose | speedup, foretold | speedup | length, "
        "foretold | length |",
        "|---" * 7 + "|",
    ]
    for row in alone.itertuples():
        chosen = [row.proposer, f"{row.dataset}, {row.temperature:g}", row.drafts]
        speeds = [f"{row.predicted_speedup:.2f}", f"{row.speedup:.2f}"]
        lengths = ["", ""]
        if row.drafts != NO_DRAFTS:
            lengths = [f"{row.predicted_length:.2f}", f"{row.length:.2f}"]
        lines.append("| " + " | ".join(chosen + speeds + lengths) + " |")
    drafting = alone[alone["drafts"] != NO_DRAFTS]
    near = (drafting["predicted_length"] / drafting["length"] - 1).abs() <= NEAR
    lines.append("")
    lines.append(f"Within {NEAR:.0%} of the measured length: {near.sum()} of {len(near)}.")
    return "\n".join(lines)


def markdown(rows: pd.DataFrame) -> str:
    """Return a table with a line per method, and a column per dataset, temperature and load."""
    settings = [tuple(key) for key in rows[CELL[1:]].drop_duplicates().to_numpy().tolist()]
    heads = [f"{dataset}, {temperature:g}, {load}" for dataset, temperature, load in settings]
    lines = ["| method | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for proposer, group in rows.groupby("proposer"):
        cells = []
        by_setting = group.set_index(CELL[1:])
        for setting in settings:
            if setting not in by_setting.index:
                cells.append("")
                continue
            row = by_setting.loc[setting]
            interval = f" ({row['low']:.2f} to {row['high']:.2f})" if row["low"] > 0 else ""
            cells.append(f"{row['speedup']:.2f}{interval}")
        lines.append(f"| {proposer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: pd.DataFrame, file: Path) -> None:
    """Draw the speedup of every method by load, a panel for each dataset and temperature."""
    panels = list(rows.groupby(["dataset", "temperature"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 4.2), sharey=True)
    loads = [ALONE, *sorted((x for x in rows["load"].unique() if x != ALONE), key=int)]
    for axis, ((dataset, temperature), group) in zip(
        [axes] if len(panels) == 1 else axes, panels, strict=True
    ):
        for number, (proposer, line) in enumerate(group.groupby("proposer")):
            line = line.set_index("load").reindex(loads).dropna(subset=["speedup"])
            x = [loads.index(load) + 0.06 * (number - 4) for load in line.index]
            error = [line["speedup"] - line["low"], line["high"] - line["speedup"]]
            axis.errorbar(x, line["speedup"], yerr=error, fmt="o-", markersize=4, label=proposer)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axis.minorticks_off()
        axis.set_xticks(range(len(loads)), loads)
        axis.set_xlabel("auto alone, then goodput by requests in flight")
        axis.set_title(f"{dataset}, temperature {temperature:g}")
    figure.axes[0].set_ylabel("throughput over plain decoding's")
    figure.axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    found = map(read_cell, sorted(runs.glob(f"*/*/{RESULTS}")))
    cells = [cell for cell in found if cell["speedup"] is not None]  # others were interrupted
    if not cells:
        raise SystemExit(
            f"{runs} holds no finished results of run.sh; give the folder that it wrote to"
        )
    rows = pd.DataFrame(cells)
    if (HERE / "results.csv").exists():
        before = pd.read_csv(HERE / "results.csv", dtype={"load": str}, keep_default_na=True)
        rows = pd.concat([before, rows]).drop_duplicates(CELL, keep="last")
    load = pd.to_numeric(rows["load"], errors="coerce").fillna(0)  # `alone` first
    rows = rows.assign(order=load).sort_values([*CELL[:-1], "order"]).drop(columns="order")
    rows.round(4).to_csv(HERE / "results.csv", index=False)
    table = markdown(rows) + "\n\n" + foretold(rows)
    (HERE / "table.md").write_text(table + "\n", encoding="utf-8")
    plot(rows, HERE / "speedups.png")
    print(table)


if __name__ == "__main__":
    main()
