"""Write and draw what train.sh logged and measure.sh measured.

    python experiments/gemma3_270m/pictures.py --work WORK --measured OUT

Reads `WORK/runs/*/metrics.jsonl`, complete or not, and `OUT/*/run/*/results.json`. Writes
training.csv, training.png, chains.csv and chains.png into results/ beside this file. No text of the
model is in any of them.
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

RESULTS = Path(__file__).parent / "results"
LABELS = {"eagle3": "EAGLE-3 head", "draft": "draft LM", "medusa": "first Medusa head"}
FIRST_STEP = "step_0/expected_acceptance"
WINDOW = 5  # logged values that a drawn point averages
FIGURES = ("mean_acceptance_length", "speedup")
CHAIN = re.compile(r"(?P<dataset>\w+)-t(?P<temperature>\d+)-chain(?P<drafts>\d+)")
DATASETS = {"sharegpt": "chats", "cnndm": "articles"}


def read_run(file: Path) -> pd.DataFrame:
    """Return what a run logged while it trained: its figures by optimizer step."""
    drafter, _, stage = file.parent.name.rpartition("_")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    table = pd.DataFrame(row for row in rows if FIRST_STEP in row)
    if table.empty:
        return table
    acceptance = [name for name in table if name.endswith("/expected_acceptance")]
    table = table[["step", "loss", "tokens_per_second", *sorted(acceptance)]]
    return table.assign(drafter=drafter, stage=stage)


def read_measurement(file: Path) -> dict[str, object]:
    """Return the figures of one chain, with their intervals."""
    name = CHAIN.fullmatch(file.parent.name)
    assert name is not None, f"{file.parent.name} is not a folder of measure.sh"
    summary = json.loads(file.read_text(encoding="utf-8"))["summary"]
    row: dict[str, object] = {"run": file.parents[2].name, **name.groupdict()}
    row["num_prompts"] = summary["num_prompts"]
    for figure in FIGURES:
        low, high = summary[f"{figure}_ci95"] or (np.nan, np.nan)
        row |= {figure: summary[figure], f"{figure}_low": low, f"{figure}_high": high}
    row["tokens_per_second"] = summary["tokens_per_second"]
    row["baseline_tokens_per_second"] = summary["baseline_tokens_per_second"]
    row["output"] = summary["output_p_value"]
    if row["output"] is None:
        row["output"] = f"{summary['num_outputs_equal']} equal"
    return row


def draw_training(runs: pd.DataFrame) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for drafter, rows in runs.groupby("drafter"):
        begin = 0
        steps: list[int] = []
        for _, stage in rows.groupby("stage"):
            steps += [begin + step for step in stage["step"]]
            begin = steps[-1]
        smooth = rows[FIRST_STEP].rolling(WINDOW, min_periods=1).mean()
        axes.plot(steps, smooth, label=LABELS.get(str(drafter), str(drafter)))
    axes.set(
        xlabel="optimizer steps, all stages",
        ylabel="expected acceptance of the first draft",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(RESULTS / "training.png", dpi=130)


def draw_chains(chains: pd.DataFrame) -> None:
    figure, all_axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for axes, name in zip(all_axes, FIGURES, strict=True):
        groups = chains.groupby(["run", "dataset", "temperature"])
        for number, (_, rows) in enumerate(groups):
            ordered = rows.sort_values("drafts")
            run, dataset, temperature = ordered[["run", "dataset", "temperature"]].iloc[0]
            value = ordered[name]
            errors = [value - ordered[f"{name}_low"], ordered[f"{name}_high"] - value]
            label = f"{run}, {DATASETS[dataset]}, temperature {temperature}"
            shift = 0.04 * (number - (len(groups) - 1) / 2)
            axes.errorbar(ordered["drafts"] + shift, value, errors, label=label, capsize=2)
        axes.set(xlabel="drafts of a step", ylabel=name.replace("_", " "))
        axes.set_xticks(sorted(chains["drafts"].unique()))
        axes.grid(alpha=0.3)
    all_axes[1].axhline(1, color="black", linewidth=0.8)
    all_axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "chains.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--measured", type=Path, required=True)
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    tables = [read_run(file) for file in sorted(arguments.work.glob("runs/*/metrics.jsonl"))]
    runs = pd.concat([table for table in tables if not table.empty], ignore_index=True)
    columns = ["drafter", "stage", *runs.columns.drop(["drafter", "stage"])]
    runs[columns].round(4).to_csv(RESULTS / "training.csv", index=False)
    draw_training(runs)
    files = sorted(arguments.measured.glob("*/run/*/results.json"))
    chains = pd.DataFrame(map(read_measurement, files)).astype({"drafts": int})
    chains.round(4).to_csv(RESULTS / "chains.csv", index=False)
    draw_chains(chains)


if __name__ == "__main__":
    main()
