"""Write results.csv and speedups.png from the runs of `run.sh`, and print the table.

    python experiments/load/table.py outputs/load

Any runs with fixed lengths will do; `--to` names another folder for the files. Lines and counts of
`bounded` are left out if it was not measured.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from specresearch.bench.folder import RESULTS
from specresearch.rows import BASELINE

HERE = Path(__file__).parent
CELL = ["proposer", "dataset", "temperature", "concurrency"]
FIXED, BOUNDED = "fixed-", "bounded"
ENOUGH, TPOT_BOUND = 0.97, 1.05  # of the best, and of plain decoding's time per token
SPEEDUPS = (0.5, 0.7, 1, 1.4, 2, 2.8, 4)  # on the axis
PANELS = 4  # beside one another


def read_cell(path: Path) -> dict[str, Any] | None:
    """Return a row of the grid: every side's throughput over plain decoding's.

    Returns None if the run has not finished.
    """
    results = json.loads(path.read_text(encoding="utf-8"))
    if not results["complete"]:
        print(f"left out, since it has not finished: {path.parent}", file=sys.stderr)
        return None
    dataset, concurrency = path.parent.parent.name.rsplit("-", 1)
    proposer, temperature = path.parent.name.rsplit("-temperature", 1)
    summary, intervals, sides = results["summary"], results["intervals"], results["sides"]
    row: dict[str, Any] = dict(
        zip(CELL, (proposer, dataset, float(temperature), int(concurrency)), strict=True)
    )
    row["baseline_throughput"] = sides[BASELINE]["throughput"]
    row |= {
        name: side["throughput"] / sides[BASELINE]["throughput"]
        for name, side in sides.items()
        if name != BASELINE
    }
    row["best"] = summary["best_fixed"]
    for name in ("speedup", "speedup_over_best", "tpot_p50_ratio", "tpot_p99_ratio"):
        for kind in (name, f"{name}_{BOUNDED}"):
            if kind in summary:
                row[kind] = summary[kind]
                row[f"{kind}_low"], row[f"{kind}_high"] = intervals.get(kind) or (
                    math.nan,
                    math.nan,
                )
    if BOUNDED in sides:
        row[f"tpot_p99_ratio_{BOUNDED}"] = sides[BOUNDED]["tpot_p99"] / sides[BASELINE]["tpot_p99"]
    row["worst_tpot_p99_ratio_fixed"] = max(
        side["tpot_p99"] / sides[BASELINE]["tpot_p99"]
        for name, side in sides.items()
        if name.startswith(FIXED)
    )
    row["mean_draft_length"], row["outputs_equal"] = (
        sides["method"]["mean_draft_length"],
        summary.get("outputs_equal"),
    )
    row["schedule_share"] = max(side["schedule_share"] for side in sides.values())
    row["commit"] = (results["provenance"]["git_commit"] or "")[:7]
    row["day"] = results["provenance"]["started"][:10]
    return row


def sides_of(rows: pd.DataFrame) -> dict[str, str]:
    """Return what ends the names of the columns of each side that a controller steers."""
    return {"goodput": ""} | ({BOUNDED: f"_{BOUNDED}"} if BOUNDED in rows else {})


def markdown(rows: pd.DataFrame) -> str:
    """Return the table: a column per load, three lines per method, dataset and temperature.

    The first line has the throughputs of the fixed lengths; the other two are the controller
    without and with a bound on losses. Their cells hold throughput over plain decoding's,
    throughput over the better of plain decoding and the best fixed length with its interval, and
    the 99th percentile of the time per output token over plain decoding's.
    """
    loads, steered = sorted(rows["concurrency"].unique()), sides_of(rows)
    lines = ["| in flight | " + " | ".join(map(str, loads)) + " |", "|---" * (1 + len(loads)) + "|"]
    for setting, group in rows.groupby(CELL[:3]):
        by_load = group.set_index("concurrency")
        proposer, dataset, temperature = setting  # type: ignore[misc]
        measured = {load: by_load.loc[load] for load in loads if load in by_load.index}
        texts = {"fixed": {load: _fixed(row) for load, row in measured.items()}}
        for title, which in steered.items():
            texts[title] = {load: _cell(row, which) for load, row in measured.items()}
        for title, by in texts.items():
            cells = " | ".join(by.get(load, "-") for load in loads)
            lines.append(f"| {proposer}, {dataset}, {temperature:g}: {title} | {cells} |")
    return "\n".join(lines)


def _fixed(row: pd.Series) -> str:
    speedups = [row[name] for name in row.index if name.startswith(FIXED) and pd.notna(row[name])]
    return f"{min(speedups):.2f} to {max(speedups):.2f}"


def _cell(row: pd.Series, which: str) -> str:
    over = f"speedup_over_best{which}"
    low, high = row[f"{over}_low"], row[f"{over}_high"]
    interval = f"{low:.2f} to {high:.2f}" if pd.notna(low) else "no interval"
    speedup, tpot = row[f"speedup{which}"], row[f"tpot_p99_ratio{which}"]
    return f"{speedup:.2f}; {row[over]:.2f} ({interval}); {tpot:.2f}"


def summarize(rows: pd.DataFrame) -> str:
    """Return what the page says of all cells together, a line for each setting."""
    fixed = rows[[name for name in rows.columns if name.startswith(FIXED)]]
    slower = fixed.lt(1).any(axis=1).sum()
    lines = [
        f"{len(rows)} cells; some fixed length is slower than plain decoding in {slower}, "
        f"at least {fixed.min().min():.3f} of it"
    ]
    for title, which in sides_of(rows).items():
        speedup, over = rows[f"speedup{which}"], rows[f"speedup_over_best{which}"]
        tpot = rows[f"tpot_p99_ratio{which}"]
        below = (rows[f"speedup_over_best{which}_high"] < ENOUGH).sum()
        lines.append(
            f"{title}: {over.mean():.3f} of the best on average, {over.min():.3f} at least, "
            f"{ENOUGH} or more in {(over >= ENOUGH).sum()}, "
            f"the whole interval below that in {below}; "
            f"of plain decoding {speedup.min():.3f} at least and "
            f"{math.exp(speedup.map(math.log).mean()):.3f} in the geometric mean; "
            f"P99 at most {TPOT_BOUND} in {(tpot <= TPOT_BOUND).sum()}, {tpot.max():.2f} at worst"
        )
    return "\n".join(lines)


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Draw throughput over plain decoding's against load, for the controller and fixed lengths."""
    settings = list(rows.groupby(CELL[:3]))
    num_lines = -(-len(settings) // PANELS)
    figure, axes = plt.subplots(
        num_lines,
        PANELS,
        figsize=(15, 3.5 * num_lines),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (setting, group) in zip(axes.flat, settings, strict=False):
        group = group.sort_values("concurrency")
        for name in sorted(
            (n for n in rows.columns if n.startswith(FIXED)),
            key=lambda n: int(n.removeprefix(FIXED)),
        ):
            axis.plot(group["concurrency"], group[name], color="0.6", linewidth=1)
            end = (group["concurrency"].iloc[-1], group[name].iloc[-1])
            axis.annotate(
                name.removeprefix(FIXED),
                end,
                (5, -3),
                textcoords="offset points",
                color="0.4",
                fontsize=8,
            )
        for which, color, marker in zip(sides_of(rows).values(), ("C0", "C1"), "os", strict=False):
            name = f"speedup{which}"
            errors = [group[name] - group[f"{name}_low"], group[f"{name}_high"] - group[name]]
            axis.errorbar(
                group["concurrency"],
                group[name],
                yerr=errors,
                color=color,
                marker=marker,
                capsize=3,
            )
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        axis.set_title(f"{setting[0]}, {setting[1]}, temperature {setting[2]:g}", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(group["concurrency"], [str(load) for load in group["concurrency"]])
        axis.set_yscale("log", base=2)
        axis.set_yticks(SPEEDUPS, [f"{speedup:g}" for speedup in SPEEDUPS])
    for axis in axes.flat[len(settings) :]:
        axis.remove()
    figure.supxlabel("requests in flight")
    figure.supylabel("throughput / plain decoding's")
    title = "goodput (blue, circles; 95% intervals)"
    if BOUNDED in rows:
        title += " and with a bound on what a request may lose (orange, squares)"
    figure.suptitle(f"{title}, beside fixed draft lengths (grey, by length)")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--to", type=Path, default=HERE, help="the folder of what is written")
    args = parser.parse_args()
    runs, folder = args.runs, args.to
    cells = [read_cell(path) for path in sorted(runs.glob(f"*/*/{RESULTS}"))]
    rows = pd.DataFrame([cell for cell in cells if cell is not None])
    if rows.empty:
        raise SystemExit(f"{runs} holds no finished runs; start experiments/load/run.sh")
    rows = rows.sort_values(CELL, ignore_index=True)
    rows.round(4).to_csv(folder / "results.csv", index=False)
    plot(rows, folder / "speedups.png")
    print(markdown(rows), summarize(rows), sep="\n\n")


if __name__ == "__main__":
    main()
