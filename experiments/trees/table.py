"""Write tables, results.csv and two pictures from the runs of `run.sh`.

    python experiments/trees/table.py outputs/trees

Speeds are those of decoding without prefill, with 95% intervals.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import yaml

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from specresearch.bench.folder import CONFIG, RESULTS
from specresearch.sweeps.callback import collect
from specresearch.tree_tuning.picture import draw_tree, node_acceptance

HERE = Path(__file__).parent
SHAPES = {
    "chain_5": "chain of 5",
    "chain_10": "chain of 10",
    "static_typical": "static, typical (24)",
    "static_chosen": "static, chosen",
    "dynamic": "dynamic (24)",
}
SETTING = ["dataset", "batch_size", "temperature"]
FIGURES = [
    "speedup",
    "speedup_ci95_low",
    "speedup_ci95_high",
    "decode_speedup",
    "decode_speedup_ci95_low",
    "decode_speedup_ci95_high",
    "tokens_per_target_forward",
    "num_draft_tokens",
    "num_drafts",
    "outputs_equal",
]


def read_runs(folder: Path) -> pd.DataFrame:
    """Return one row per run: its setting, shape and figures."""
    rows = []
    for shape in SHAPES:
        for row in collect(folder / shape):
            config = yaml.safe_load(
                (folder / shape / row["job"] / CONFIG).read_text(encoding="utf-8")
            )
            setting = (
                config["dataset"]["name"],
                config["batch_size"],
                config["sampling"]["temperature"],
            )
            rows.append(
                dict(zip(SETTING, setting, strict=True)) | {"shape": shape, "job": row["job"]}
            )
            rows[-1] |= {name: row.get(name) for name in FIGURES}
    if not rows:
        raise SystemExit(f"{folder} holds no runs; start experiments/trees/run.sh")
    return pd.DataFrame(rows).sort_values([*SETTING, "shape"], ignore_index=True)


def read_choices(folder: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per chosen tree: its size, and its predicted and measured speed."""
    chosen = runs.loc[runs["shape"] == "static_chosen"]
    rows = []
    for _, run in chosen.iterrows():
        choice = json.loads((folder / "chosen" / f"{run['job']}.json").read_text(encoding="utf-8"))
        rows.append(
            {
                **{name: run[name] for name in SETTING},
                "nodes": choice["num_draft_tokens"],
                "depth": choice["depth"],
                "tokens per pass, expected": choice["expected_tokens"],
                "tokens per pass, measured": run["tokens_per_target_forward"],
                "decoding, predicted": choice["predicted_speedup"],
                "decoding, measured": run["decode_speedup"],
            }
        )
    return pd.DataFrame(rows)


def settings_of(runs: pd.DataFrame, names: list[str]) -> list[list[str | int | float]]:
    """Return the distinct combinations of these columns."""
    return runs[names].drop_duplicates().astype(object).to_numpy().tolist()


def having(runs: pd.DataFrame, names: list[str], setting: list[str | int | float]) -> pd.DataFrame:
    return runs.loc[(runs[names].astype(object) == setting).all(axis=1)]


def print_speeds(runs: pd.DataFrame) -> None:
    print(f"| {' | '.join([*SETTING, *SHAPES.values()])} |".replace("_", " "))
    print("|" + "---|" * (len(SETTING) + len(SHAPES)))
    for setting in settings_of(runs, SETTING):
        group = having(runs, SETTING, setting)
        cells = [_speed(group.loc[group["shape"] == shape]) for shape in SHAPES]
        print(f"| {' | '.join([*map(str, setting), *cells])} |")


def _speed(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "-"
    run = runs.iloc[0]
    low, high, tau = (run[name] for name in FIGURES[4:7])
    spread = f" ({low:.2f} to {high:.2f})" if pd.notna(low) and pd.notna(high) else ""
    changed = " OUTPUT CHANGED" if run["outputs_equal"] in (False,) else ""
    return f"{run['decode_speedup']:.2f}{spread}; {tau:.2f}{changed}"


def print_choices(choices: pd.DataFrame) -> None:
    print(f"| {' | '.join(choices.columns)} |".replace("_", " "))
    print("|" + "---|" * len(choices.columns))
    for row in choices.itertuples(index=False):
        cells = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |")


def draw_speeds(runs: pd.DataFrame, file: Path) -> None:
    """Draw a panel for each dataset and batch size, with the temperatures side by side."""
    names = SETTING[:2]
    panels = settings_of(runs, names)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.4 * len(panels), 3.6), sharey=True, squeeze=False
    )
    for panel, setting in zip(axes[0], panels, strict=True):
        group = having(runs, names, setting)
        for i, temperature in enumerate(sorted(set(group["temperature"]))):
            speeds = (
                group.loc[group["temperature"] == temperature].set_index("shape").reindex(SHAPES)
            )
            speed, low, high = (speeds[name].to_numpy(dtype=float) for name in FIGURES[3:6])
            positions = np.arange(len(SHAPES)) + 0.16 * (2 * i - 1)
            panel.errorbar(
                positions,
                speed,
                [speed - low, high - speed],
                fmt="o",
                capsize=3,
                label=f"t = {temperature}",
            )
        panel.axhline(1, color="0.6", linewidth=1)
        panel.set_title(f"{setting[0]}, batch {setting[1]}")
        panel.set_xticks(range(len(SHAPES)), list(SHAPES.values()), rotation=60, ha="right")
    axes[0][0].set_ylabel("decoding, times plain")
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def draw_trees(folder: Path, runs: pd.DataFrame, file: Path) -> None:
    """Draw the acceptance of the typical tree's nodes on each dataset, greedy at batch size 1."""
    static = runs.loc[
        (runs["shape"] == "static_typical") & (runs["batch_size"] == 1) & (runs["temperature"] == 0)
    ]
    figure, axes = plt.subplots(1, len(static), figsize=(6 * len(static), 4), squeeze=False)
    for panel, (_, run) in zip(axes[0], static.iterrows(), strict=True):
        draw_tree(node_acceptance(folder / run["shape"] / run["job"]), panel)
        panel.set_title(run["dataset"])
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where run.sh put the runs")
    parser.add_argument(
        "--output", type=Path, default=HERE, help="where the table's figures and the pictures go"
    )
    args = parser.parse_args()
    runs = read_runs(args.folder)
    choices = read_choices(args.folder, runs)
    print_speeds(runs)
    print()
    print_choices(choices)
    args.output.mkdir(parents=True, exist_ok=True)
    runs.to_csv(args.output / "results.csv", index=False)
    draw_speeds(runs, args.output / "speeds.png")
    draw_trees(args.folder, runs, args.output / "trees.png")
    first = args.folder / runs["shape"][0] / runs["job"][0]
    machine = json.loads((first / RESULTS).read_text(encoding="utf-8"))["provenance"]["machine"]
    print(f"\n{machine['device']}, {machine['num_torch_threads']} threads")


if __name__ == "__main__":
    main()
