"""Write a Markdown table and summary.csv from the runs of `run.sh`.

python experiments/methods/table.py outputs/methods
"""

import sys
from pathlib import Path

import pandas as pd

from specresearch.sweeps.callback import collect

HERE = Path(__file__).parent
FIGURES = [
    "speedup",
    "speedup_ci95_low",
    "speedup_ci95_high",
    "decode_speedup",
    "tokens_per_target_forward",
]
FIGURES += [
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "cost_ratio",
    "num_prompts",
    "outputs_equal",
]


def read(folder: Path) -> pd.DataFrame:
    rows = [
        {
            "dataset": dataset.name,
            "method": method,
            "temperature": float(temperature.removeprefix("temperature")),
        }
        | {name: row.get(name) for name in FIGURES}
        for dataset in sorted(path for path in folder.iterdir() if path.is_dir())
        for row in collect(dataset)
        for method, temperature in [row["job"].split("-")]
    ]
    if not rows:
        raise SystemExit(f"{folder} holds no runs; start experiments/methods/run.sh")
    return pd.DataFrame(rows)


def markdown(rows: pd.DataFrame) -> str:
    """Return speedups and tokens per target forward, with methods ordered by their best."""
    settings = list(rows.groupby(["dataset", "temperature"]).groups)
    by_run = rows.set_index(["method", "dataset", "temperature"])
    best = rows.groupby("method")["speedup"].mean().sort_values(ascending=False)
    named = [f"{dataset}, temperature {temperature:g}" for dataset, temperature in settings]
    lines = ["| | " + " | ".join(named) + " |", "|---" * (1 + len(settings)) + "|"]
    for method in best.index:
        cells = []
        for dataset, temperature in settings:
            row = by_run.loc[(method, dataset, temperature)]
            low, high = row["speedup_ci95_low"], row["speedup_ci95_high"]
            interval = f"{low:.2f} to {high:.2f}" if pd.notna(low) else "no interval"
            cells.append(
                f"{row['speedup']:.2f} ({interval}); {row['tokens_per_target_forward']:.2f}"
            )
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    table = read(Path(sys.argv[1]))
    table.round(4).to_csv(HERE / "summary.csv", index=False)
    print(markdown(table))
