"""Write results.csv from the runs of `run.sh`, and print a table of them.

python experiments/pairings/table.py outputs/pairings
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from specresearch.bench.folder import RESULTS
from specresearch.proposers.draft_shape import DraftShape

HERE = Path(__file__).parent
CELL = ["drafter", "dataset", "temperature", "batch"]
HEADERS = [
    "drafter",
    "size, of the target's",
    "memory it adds, MB",
    "a draft's cost in passes",
    "dataset",
    "tokens a step foretold, T = 0; 1",
    "batch 1, T = 0",
    "batch 1, T = 1",
    "batch 8, T = 0",
    "batch 8, T = 1",
]


def read_cell(path: Path) -> dict[str, Any]:
    """Return a row: what was drafted, accepted, and how fast that was."""
    results = json.loads(path.read_text(encoding="utf-8"))
    dataset, temperature, batch = path.parent.name.split("-")
    summary, provenance = results["summary"], results["provenance"]
    method = provenance["method"]
    low, high = (results["intervals"].get("speedup") or {}).get("ci95") or (math.nan, math.nan)
    choice = method.get("shape") or {}
    drafts = DraftShape.from_json(choice["shape"]) if choice else None
    as_set = DraftShape(method["num_draft_tokens"], "chain")  # of the drafters named _chain2
    target = provenance["target"]
    size = summary["memory_draft_weights"] / target["weight_bytes"]  # of a head
    if method["models"]:
        size = method["models"][0]["num_parameters"] / target["num_parameters"]
    return {
        "drafter": path.parent.parent.name,
        "dataset": dataset,
        "temperature": float(temperature.removeprefix("t")),
        "batch": int(batch.removeprefix("b")),
        "drafts": str(drafts or as_set),
        "best_drafts": str(DraftShape.from_json(choice["best"])) if choice else "",
        "predicted_speedup": choice.get("predicted_speedup"),
        "predicted_tokens": choice.get("expected_tokens"),
        "acceptance_length": summary.get("mean_acceptance_length"),
        "draft_cost": summary.get("cost_ratio"),
        "speedup": summary["speedup"],
        "low": low,
        "high": high,
        "size": size,
        "draft_weights": summary["memory_draft_weights"],
        "draft_cache": summary["memory_draft_cache"],
        "outputs_equal": summary.get("outputs_equal"),
    }


def markdown(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return a table with a line per drafter and dataset."""
    lines = [f"| {' | '.join(HEADERS)} |", "|---" * len(HEADERS) + "|"]
    for drafter, dataset in dict.fromkeys((row["drafter"], row["dataset"]) for row in rows):
        cells = [row for row in rows if (row["drafter"], row["dataset"]) == (drafter, dataset)]
        by_setting = {(cell["batch"], cell["temperature"]): cell for cell in cells}
        alone = [cell["predicted_tokens"] for cell in cells if cell["batch"] == 1]
        costs = [cell["draft_cost"] for cell in cells if cell["draft_cost"] > 0]
        memory = (cells[0]["draft_weights"] + cells[0]["draft_cache"]) / 1e6
        columns = [
            drafter,
            f"{cells[0]['size']:.3f}",
            f"{memory:,.0f}",
            f"{median(costs):.3f}" if costs else "",
            dataset,
            "; ".join(f"{tokens:.2f}" for tokens in alone if tokens > 0),
        ]
        for batch in (1, 8):
            columns += [_cell(by_setting.get((batch, temperature))) for temperature in (0.0, 1.0)]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _cell(cell: Mapping[Any, Any] | None) -> str:
    """Return the speedup, and what it was reached with."""
    if cell is None:
        return ""
    interval = "" if math.isnan(cell["low"]) else f" ({cell['low']:.2f} to {cell['high']:.2f})"
    return f"{cell['speedup']:.2f}{interval}, {cell['drafts']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    cells = [read_cell(path) for path in sorted(runs.glob(f"*/*/{RESULTS}"))]
    if not cells:
        raise SystemExit(f"{runs} holds no results of run.sh; give the folder that it wrote to")
    rows = pd.DataFrame(cells).sort_values(CELL)
    for name in ("draft_cost", "predicted_tokens", "acceptance_length"):
        rows[name] = rows[name].astype(float)
    rows.round(4).to_csv(HERE / "results.csv", index=False)
    print(markdown(rows.to_dict("records")))


if __name__ == "__main__":
    main()
