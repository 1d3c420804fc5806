"""The table and the picture of a study, from its rows.

    python experiments/training/table.py objectives
    python experiments/training/table.py speed --runs outputs/training_speed

Intervals (95%) resample prompts, the same for all arms, and seeds; three seeds make the second part of it coarse.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from specresearch.bench.jsonl import read_jsonl

HERE = Path(__file__).parent
REFERENCES = {"objectives": "cross_entropy", "data": "published text, cross-entropy", "drafters": "draft model"}
NUM_RESAMPLES = 4000
SPEED = "speed"
SPEED_COLUMNS = ("speedup", "mean_acceptance_length", "cost_ratio", "tokens_per_second", "baseline_tokens_per_second")


def read(study: str) -> pd.DataFrame:
    """A row for every arm, dataset and temperature; accepted and drafts are arrays [seed, prompt]."""
    rows = read_jsonl(HERE / "results" / f"{study}.jsonl")
    found: dict[tuple[str, str, float], list[dict]] = {}
    for row in rows:
        for figures in row["figures"]:
            found.setdefault((row["arm"], figures["dataset"], figures["temperature"]), []).append(figures)
    return pd.DataFrame(
        {
            "arm": arm,
            "dataset": dataset,
            "temperature": temperature,
            "accepted": np.array([figures["num_accepted_tokens"] for figures in seeds]),
            "drafts": np.array([figures["num_drafts"] for figures in seeds]),
            "expected_acceptance": float(np.mean([figures["expected_acceptance"] for figures in seeds])),
        }
        for (arm, dataset, temperature), seeds in found.items()
    )


def lengths(row: pd.Series, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mean acceptance lengths of an arm, one for each resample of prompts [R, P]; its seeds are drawn here."""
    num_seeds = len(row["accepted"])
    seeds = rng.integers(num_seeds, size=(len(prompts), num_seeds))[:, :, None]
    accepted, drafts = (row[name][seeds, prompts[:, None]].sum((1, 2)) for name in ("accepted", "drafts"))
    return 1 + accepted / drafts


def summarise(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Of every arm in every setting: mean acceptance length, and its ratio to the reference's with an interval."""
    summary = []
    for (dataset, temperature), group in rows.groupby(["dataset", "temperature"], sort=False):
        num_prompts = group.iloc[0]["accepted"].shape[1]
        prompts = np.random.default_rng(0).integers(num_prompts, size=(NUM_RESAMPLES, num_prompts))
        rng = np.random.default_rng(1)
        drawn = {row["arm"]: lengths(row, prompts, rng) for _, row in group.iterrows()}
        for _, row in group.iterrows():
            own = 1 + row["accepted"].sum() / row["drafts"].sum()
            base = group.loc[group["arm"] == reference].iloc[0]
            ratio = own / (1 + base["accepted"].sum() / base["drafts"].sum())
            low, high = np.quantile(drawn[row["arm"]] / drawn[reference], [0.025, 0.975])
            by_seed = 1 + row["accepted"].sum(1) / row["drafts"].sum(1)
            summary.append(
                {
                    "arm": row["arm"],
                    "setting": f"{dataset}, temperature {temperature:g}",
                    "length": own,
                    "least": by_seed.min(),
                    "most": by_seed.max(),
                    "ratio": ratio,
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
            ratio = "" if arm == reference else f" ({row['ratio']:.3f}; {row['low']:.3f} to {row['high']:.3f})"
            mark = "" if arm == reference or row["low"] > 1 or row["high"] < 1 else " n.s."
            cells.append(f"{row['length']:.3f}{ratio}{mark}")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(summary: pd.DataFrame, reference: str, file: Path) -> None:
    """Ratios to the reference with their intervals, a panel for each setting."""
    settings, arms = (list(dict.fromkeys(summary[name])) for name in ("setting", "arm"))
    figure, panels = plt.subplots(1, len(settings), figsize=(3 * len(settings) + 2, 1 + 0.4 * len(arms)), sharey=True)
    for panel, setting in zip(np.atleast_1d(panels), settings, strict=True):
        rows = summary.loc[summary["setting"] == setting].set_index("arm").loc[arms]
        low, high = (rows["ratio"] - rows["low"]).clip(lower=0), (rows["high"] - rows["ratio"]).clip(lower=0)
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
    """Of every run of `speed.sh`: the speedup over plain decoding with its interval, and what a step drafts and costs."""
    rows = []
    for file in sorted(runs.glob("*/*/results.json")):
        results = json.loads(file.read_text(encoding="utf-8"))
        if not results["complete"]:
            raise SystemExit(f"{file} is not complete: run speed.sh again with resume=true")
        summary = results["summary"]
        dataset, batch = file.parent.name.rsplit("-batch", 1)
        rows.append({"arm": file.parents[1].name, "dataset": dataset, "batch_size": int(batch)})
        rows[-1] |= {name: summary[name] for name in SPEED_COLUMNS}
        rows[-1]["low"], rows[-1]["high"] = summary["speedup_ci95"]
    return pd.DataFrame(rows)


def speed_markdown(rows: pd.DataFrame) -> str:
    """Speedup with its interval, then what a pass of the drafter costs in target passes."""
    order = rows.sort_values(["dataset", "batch_size"], ascending=[False, True])
    settings = order.groupby(["dataset", "batch_size"], sort=False)
    by_setting = {f"{dataset}, batch {batch}": own.set_index("arm") for (dataset, batch), own in settings}
    lines = ["| | " + " | ".join(by_setting) + " |", "|---" * (1 + len(by_setting)) + "|"]
    for arm in dict.fromkeys(rows["arm"]):
        cells = ["-" if arm not in own.index else _told(own.loc[arm]) for own in by_setting.values()]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _told(row: pd.Series) -> str:
    return f"{row['speedup']:.2f} ({row['low']:.2f} to {row['high']:.2f}); {row['cost_ratio']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[*REFERENCES, SPEED])
    parser.add_argument("--runs", type=Path, default=Path("outputs/training_speed"), help="of speed.sh")
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
