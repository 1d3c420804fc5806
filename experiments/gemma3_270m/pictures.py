"""Write and draw what train.sh logged and measure.sh measured.

    python experiments/gemma3_270m/pictures.py --work WORK --measured OUT

Reads `WORK/runs/*/metrics.jsonl`, complete or not, and `OUT/*/run/*/results.json`. Writes
training.csv, training.png, drafters.csv and drafters.png into results/ beside this file. No text of
the model is in any of them.
"""

import argparse
import json
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt

from specresearch.proposers.draft_shape import DraftShape

RESULTS = Path(__file__).parent / "results"
LABELS = {"eagle3": "EAGLE-3 head", "draft": "draft LM", "medusa": "first Medusa head"}
FIRST_STEP = "step_0/expected_acceptance"
RUNS = "runs/*/metrics.jsonl"
COPYING = "copies"  # in the names of stages on repeated words
WINDOW = 5  # logged values that a drawn point averages
FIGURES = ("mean_acceptance_length", "speedup")
HOST = ("efficiency", "host_overhead")
MEASURED = re.compile(r"(?P<dataset>\w+)-t(?P<temperature>\d+)-(?P<drafts>auto|\d+)")
CELL = ["dataset", "temperature"]
DATASETS = {"sharegpt": "chats", "cnndm": "articles"}


def last_written(file: Path) -> float:
    """Return when a run logged last: stages follow one another."""
    return file.stat().st_mtime


def read_run(file: Path) -> pd.DataFrame:
    """Return what a run logged while it trained: its figures by optimizer step."""
    drafter, _, stage = file.parent.name.partition("_")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    table = pd.DataFrame(row for row in rows if FIRST_STEP in row)
    if table.empty:
        return table
    acceptance = [name for name in table if name.endswith("/expected_acceptance")]
    table = table[["step", "loss", "tokens_per_second", *sorted(acceptance)]]
    return table.assign(drafter=drafter, stage=stage)


def read_measurement(file: Path) -> dict[str, object]:
    """Return what one run of measure.sh measured, with intervals, and what `auto` had foretold."""
    name = MEASURED.fullmatch(file.parent.name)
    assert name is not None, f"{file.parent.name} is not a folder of measure.sh"
    results = json.loads(file.read_text(encoding="utf-8"))
    summary, chosen = results["summary"], results["provenance"]["method"]["shape"]
    row: dict[str, object] = {"run": file.parents[2].name, **name.groupdict()}
    row["chosen"] = str(DraftShape.from_json(chosen["shape"])) if chosen else None
    row["foretold_length"] = chosen["acceptance_length"] if chosen else np.nan
    row["num_prompts"] = summary["num_prompts"]
    for figure in FIGURES:
        low, high = summary[f"{figure}_ci95"] or (np.nan, np.nan)
        row |= {figure: summary[figure], f"{figure}_low": low, f"{figure}_high": high}
    for figure in ("tokens_per_second", "baseline_tokens_per_second", *HOST):
        row[figure] = summary[figure]
    row["output"] = summary["output_p_value"]
    if row["output"] is None:
        row["output"] = f"{summary['num_outputs_equal']} equal"
    return row


def draw_training(runs: pd.DataFrame) -> None:
    """Draw the stages of each drafter one after another; those on repeated words are dotted."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for number, (drafter, rows) in enumerate(runs.groupby("drafter")):
        label, begin = LABELS.get(str(drafter), str(drafter)), 0
        for stage, logged in rows.groupby("stage", sort=False):
            smooth = logged[FIRST_STEP].rolling(WINDOW, min_periods=1).mean()
            style = ":" if COPYING in str(stage) else "-"
            axes.plot(begin + logged["step"], smooth, style, color=f"C{number}", label=label)
            label, begin = None, begin + logged["step"].max()
    axes.set(
        xlabel="optimizer steps, all stages",
        ylabel="expected acceptance of the first draft",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(RESULTS / "training.png", dpi=130)


def draw_drafters(rows: pd.DataFrame) -> None:
    """Draw the figures of each drafter by drafts, a column of panels for each cell."""
    cells = rows.drop_duplicates(CELL).sort_values(CELL[::-1])[CELL].to_numpy().tolist()
    names = sorted(rows["drafts"].unique())
    figure, grid = plt.subplots(
        len(FIGURES), len(cells), figsize=(12, 5.5), sharex=True, sharey="row", layout="constrained"
    )
    for column, (dataset, temperature) in zip(grid.T, cells, strict=True):
        cell = rows.query(f"dataset == '{dataset}' and temperature == '{temperature}'")
        column[0].set_title(f"{DATASETS[dataset]}, temperature {temperature}")
        for axes, name in zip(column, FIGURES, strict=True):
            for number, (run, measured) in enumerate(cell.groupby("run")):
                line = measured.sort_values("drafts")
                place = [names.index(drafts) + 0.08 * number for drafts in line["drafts"]]
                errors = [line[name] - line[f"{name}_low"], line[f"{name}_high"] - line[name]]
                axes.errorbar(place, line[name], errors, label=run, fmt="o", capsize=2)
            axes.set_xticks(range(len(names)), names)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.grid(alpha=0.3)
        column[-1].set_xlabel("drafts of a step")
    for axes, name in zip(grid[:, 0], FIGURES, strict=True):
        axes.set_ylabel(name.replace("_", " "))
    grid[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "drafters.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--measured", type=Path, required=True)
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    tables = [read_run(file) for file in sorted(arguments.work.glob(RUNS), key=last_written)]
    runs = pd.concat([table for table in tables if not table.empty], ignore_index=True)
    columns = ["drafter", "stage", *runs.columns.drop(["drafter", "stage"])]
    runs[columns].round(4).to_csv(RESULTS / "training.csv", index=False)
    draw_training(runs)
    files = sorted(arguments.measured.glob("*/run/*/results.json"))
    drafters = pd.DataFrame(map(read_measurement, files))
    drafters.round(4).to_csv(RESULTS / "drafters.csv", index=False)
    draw_drafters(drafters)


if __name__ == "__main__":
    main()
