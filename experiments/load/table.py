"""From the runs of `run.sh`: the table in Markdown, results.csv beside this file, and speedups.png.

python experiments/load/table.py outputs/load
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

from specresearch.bench.results import RESULTS

HERE = Path(__file__).parent
CELL = ["proposer", "dataset", "temperature", "concurrency"]
FIXED = "fixed-"


def read_cell(path: Path) -> dict[str, Any]:
    """One row of the grid: every side's throughput over plain decoding's, and the controller's against the best."""
    results = json.loads(path.read_text(encoding="utf-8"))
    dataset, concurrency = path.parent.parent.name.rsplit("-", 1)
    proposer, temperature = path.parent.name.rsplit("-temperature", 1)
    summary, intervals, sides = results["summary"], results["intervals"], results["sides"]
    row: dict[str, Any] = dict(zip(CELL, (proposer, dataset, float(temperature), int(concurrency)), strict=True))
    row["plain_throughput"] = sides["plain"]["throughput"]
    row |= {name: side["throughput"] / sides["plain"]["throughput"] for name, side in sides.items() if name != "plain"}
    row["best"] = summary["best_fixed"]
    for name in ("speedup", "speedup_over_best", "tpot_p50_ratio", "tpot_p99_ratio"):
        row[name] = summary[name]
        row[f"{name}_low"], row[f"{name}_high"] = intervals.get(name) or (math.nan, math.nan)
    row["worst_tpot_p99_ratio_fixed"] = max(
        side["tpot_p99"] / sides["plain"]["tpot_p99"] for name, side in sides.items() if name.startswith(FIXED)
    )
    row["mean_draft_length"], row["outputs_equal"] = sides["method"]["mean_draft_length"], summary.get("outputs_equal")
    row["schedule_share"] = max(side["schedule_share"] for side in sides.values())
    return row


def markdown(rows: pd.DataFrame) -> str:
    """One line per method, dataset and temperature; a column per load."""
    loads = sorted(rows["concurrency"].unique())
    lines = ["| in flight | " + " | ".join(map(str, loads)) + " |", "|---" * (1 + len(loads)) + "|"]
    for setting, group in rows.groupby(CELL[:3]):
        by_load = group.set_index("concurrency")
        cells = []
        for load in loads:
            if load not in by_load.index:
                cells.append("-")
                continue
            row = by_load.loc[load]
            fixed = [row[name] for name in row.index if name.startswith(FIXED) and pd.notna(row[name])]
            cells.append(
                f"{row['speedup']:.2f}; {row['speedup_over_best']:.2f} ({row['speedup_over_best_low']:.2f} to "
                f"{row['speedup_over_best_high']:.2f}); {row['tpot_p99_ratio']:.2f}; {min(fixed):.2f} to {max(fixed):.2f}"
            )
        proposer, dataset, temperature = setting  # type: ignore[misc]
        lines.append(f"| {proposer}, {dataset}, temperature {temperature:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Throughput over plain decoding's against load: the controller, and every fixed length."""
    settings = list(rows.groupby(CELL[:3]))
    figure, axes = plt.subplots(2, -(-len(settings) // 2), figsize=(15, 7), sharex=True, sharey=True, squeeze=False)
    for axis, (setting, group) in zip(axes.flat, settings, strict=False):
        group = group.sort_values("concurrency")
        for name in sorted((n for n in rows.columns if n.startswith(FIXED)), key=lambda n: int(n.removeprefix(FIXED))):
            axis.plot(group["concurrency"], group[name], color="0.6", linewidth=1)
            axis.annotate(name.removeprefix(FIXED), (group["concurrency"].iloc[-1], group[name].iloc[-1]), color="0.4")
        errors = [group["speedup"] - group["speedup_low"], group["speedup_high"] - group["speedup"]]
        axis.errorbar(group["concurrency"], group["speedup"], yerr=errors, color="C0", marker="o", capsize=3)
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        axis.set_title(f"{setting[0]}, {setting[1]}, temperature {setting[2]:g}", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(group["concurrency"], [str(load) for load in group["concurrency"]])
    figure.supxlabel("requests in flight")
    figure.supylabel("throughput / plain decoding's")
    figure.suptitle("goodput (blue, 95% intervals) beside fixed draft lengths (grey, by length)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    rows = pd.DataFrame([read_cell(path) for path in sorted(runs.glob(f"*/*/{RESULTS}"))])
    if rows.empty:
        raise SystemExit(f"{runs} holds no runs; start experiments/load/run.sh")
    rows = rows.sort_values(CELL, ignore_index=True)
    rows.round(4).to_csv(HERE / "results.csv", index=False)
    plot(rows, HERE / "speedups.png")
    print(markdown(rows))


if __name__ == "__main__":
    main()
