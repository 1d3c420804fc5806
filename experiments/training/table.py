"""Write the table and the picture of a study from its rows.

    python experiments/training/table.py objectives
    python experiments/training/table.py speed --runs outputs/training_speed

Intervals (95%) cover other prompts and training seeds; with three seeds, the latter part is coarse.
"""

import argparse
import json
from math import isnan, nan
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from specresearch.files.jsonl import read_jsonl
from specresearch.statistics import POSITIVE, Spread, spread

HERE = Path(__file__).parent
REFERENCES = {
    "objectives": "cross_entropy",
    "data": "published text, cross-entropy",
    "drafters": "draft model",
}
SPEED = "speed"
SPEED_COLUMNS = (
    "speedup",
    "mean_acceptance_length",
    "cost_ratio",
    "tokens_per_second",
    "baseline_tokens_per_second",
)


def read(study: str) -> pd.DataFrame:
    """Return a row per arm, dataset and temperature; accepted and drafts are [seed, prompt]."""
    rows = sorted(read_jsonl(HERE / "results" / f"{study}.jsonl"), key=lambda row: row["seed"])
    rows_by_setting: dict[tuple[str, str, float], list[dict]] = {}
    seeds: dict[str, list[int]] = {}
    for row in rows:
        seeds.setdefault(row["arm"], []).append(row["seed"])
        for figures in row["figures"]:
            rows_by_setting.setdefault(
                (row["arm"], figures["dataset"], figures["temperature"]), []
            ).append(figures)
    for arm, arm_rows in seeds.items():
        if arm_rows != seeds[REFERENCES[study]]:
            raise SystemExit(
                f"{arm} has seeds {arm_rows}, the reference {seeds[REFERENCES[study]]}: "
                f"run study.py {study} again"
            )
    return pd.DataFrame(
        {
            "arm": arm,
            "dataset": dataset,
            "temperature": temperature,
            "accepted": np.array([figures["num_accepted_tokens"] for figures in seeds]),
            "drafts": np.array([figures["num_drafts"] for figures in seeds]),
            "expected_acceptance": float(
                np.mean([figures["expected_acceptance"] for figures in seeds])
            ),
        }
        for (arm, dataset, temperature), seeds in rows_by_setting.items()
    )


def length(totals: np.ndarray) -> np.ndarray:
    """Return mean acceptance lengths, from accepted tokens and drafts [..., 2]."""
    return 1 + totals[..., 0] / totals[..., 1]


def ratio_of_lengths(totals: np.ndarray) -> np.ndarray:
    """Return ratios of two arms' acceptance lengths, from accepted tokens and drafts [..., 4]."""
    return length(totals[..., :2]) / length(totals[..., 2:])


def compare(arm: pd.Series, reference: pd.Series) -> Spread:
    """Return the ratio of two arms; the variances over prompts and over training seeds add up.

    Degrees of freedom are Welch and Satterthwaite's.
    """
    both = [row[name] for row in (arm, reference) for name in ("accepted", "drafts")]
    over_prompts = spread(
        np.stack([counts.mean(0) for counts in both], axis=1), ratio_of_lengths, bounds=POSITIVE
    )
    assert over_prompts is not None, "at least eight prompts"
    by_seed = np.log(ratio_of_lengths(np.stack([counts.sum(1) for counts in both], axis=-1)))
    variances = np.array([over_prompts.error**2, by_seed.var(ddof=1) / len(by_seed)])
    freedoms = np.array([over_prompts.freedom, len(by_seed) - 1])
    freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum() if variances.any() else 1.0
    return Spread(over_prompts.value, float(np.sqrt(variances.sum())), float(freedom), POSITIVE)


def summarise(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Return each arm's acceptance length per setting, and its ratio to the reference's."""
    summary = []
    for (dataset, temperature), group in rows.groupby(["dataset", "temperature"], sort=False):
        base = group.loc[group["arm"] == reference].iloc[0]
        for _, row in group.iterrows():
            ratio = compare(row, base)
            low, high = ratio.interval()
            by_seed = length(np.stack([row["accepted"].sum(1), row["drafts"].sum(1)], axis=-1))
            summary.append(
                {
                    "arm": row["arm"],
                    "setting": f"{dataset}, temperature {temperature:g}",
                    "length": length(np.array([row["accepted"].sum(), row["drafts"].sum()])),
                    "least": by_seed.min(),
                    "most": by_seed.max(),
                    "ratio": ratio.value,
                    "low": low,
                    "high": high,
                    "expected_acceptance": row["expected_acceptance"],
                }
            )
    return pd.DataFrame(summary)


def markdown(summary: pd.DataFrame, reference: str) -> str:
    settings = list(dict.fromkeys(summary["setting"]))
    lines = ["| | " + " | ".join(settings) + " |", "|---" * (1 + len(settings)) + "|"]
    for arm in dict.fromkeys(summary["arm"]):
        cells = []
        for setting in settings:
            row = summary.loc[(summary["arm"] == arm) & (summary["setting"] == setting)].iloc[0]
            ratio = (
                ""
                if arm == reference
                else f" ({row['ratio']:.3f}; {row['low']:.3f} to {row['high']:.3f})"
            )
            mark = "" if arm == reference or row["low"] > 1 or row["high"] < 1 else " n.s."
            cells.append(f"{row['length']:.3f}{ratio}{mark}")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(summary: pd.DataFrame, reference: str, file: Path) -> None:
    """Draw ratios to the reference with their intervals, a panel for each setting."""
    settings, arms = (list(dict.fromkeys(summary[name])) for name in ("setting", "arm"))
    figure, panels = plt.subplots(
        1, len(settings), figsize=(3 * len(settings) + 2, 1 + 0.4 * len(arms)), sharey=True
    )
    for panel, setting in zip(np.atleast_1d(panels), settings, strict=True):
        rows = summary.loc[summary["setting"] == setting].set_index("arm").loc[arms]
        low, high = (
            (rows["ratio"] - rows["low"]).clip(lower=0),
            (rows["high"] - rows["ratio"]).clip(lower=0),
        )
        panel.errorbar(rows["ratio"], range(len(arms)), xerr=[low, high], fmt="o", capsize=3)
        panel.axvline(1, color="grey", linewidth=1)
        panel.set_title(setting, fontsize=10)
        panel.set_yticks(range(len(arms)), arms)
        panel.grid(axis="x", alpha=0.3)
    np.atleast_1d(panels)[0].invert_yaxis()
    figure.supxlabel(f"mean acceptance length / that of '{reference}'", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def speeds(runs: Path) -> pd.DataFrame:
    """Return the speedup of every run of `speed.sh`, and what its steps draft and cost."""
    rows = []
    for file in sorted(runs.glob("*/*/results.json")):
        results = json.loads(file.read_text(encoding="utf-8"))
        if not results["complete"]:
            raise SystemExit(f"{file} is not complete: run speed.sh again with resume=true")
        summary = results["summary"]
        dataset, batch = file.parent.name.rsplit("-batch", 1)
        rows.append({"arm": file.parents[1].name, "dataset": dataset, "batch_size": int(batch)})
        rows[-1] |= {name: summary[name] for name in SPEED_COLUMNS}
        rows[-1]["low"], rows[-1]["high"] = summary["speedup_ci95"] or (nan, nan)
    return pd.DataFrame(rows)


def speed_markdown(rows: pd.DataFrame) -> str:
    """Return a table of speedups and of the cost of a drafter's pass in target passes."""
    order = rows.sort_values(["dataset", "batch_size"], ascending=[False, True])
    settings = order.groupby(["dataset", "batch_size"], sort=False)
    by_setting = {
        f"{dataset}, batch {batch}": table.set_index("arm") for (dataset, batch), table in settings
    }
    lines = ["| | " + " | ".join(by_setting) + " |", "|---" * (1 + len(by_setting)) + "|"]
    for arm in dict.fromkeys(rows["arm"]):
        cells = [
            "-" if arm not in table.index else cell(table.loc[arm]) for table in by_setting.values()
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(row: pd.Series) -> str:
    interval = "" if isnan(row["low"]) else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['speedup']:.2f}{interval}; {row['cost_ratio']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=[*REFERENCES, SPEED])
    parser.add_argument(
        "--runs", type=Path, default=Path("outputs/training_speed"), help="of speed.sh"
    )
    args = parser.parse_args()
    study = args.study
    if study == SPEED:
        rows = speeds(args.runs)
        rows.round(4).to_csv(HERE / "results" / f"{SPEED}.csv", index=False)
        print(speed_markdown(rows))
        return
    summary = summarise(read(study), REFERENCES[study])
    summary.round(4).to_csv(HERE / "results" / f"{study}.csv", index=False)
    plot(summary, REFERENCES[study], HERE / "results" / f"{study}.png")
    print(markdown(summary, REFERENCES[study]))


if __name__ == "__main__":
    main()
