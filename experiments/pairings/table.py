"""Write results.csv and table.md from the runs of `run.sh`.

python experiments/pairings/table.py outputs/pairings
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from specresearch.bench.folder import RESULTS
from specresearch.proposers.draft_shape import DraftShape

HERE = Path(__file__).parent
CELL = ["drafter", "dataset", "temperature", "batch"]


def read_cell(path: Path) -> dict[str, Any]:
    """Return a row: what was drafted, accepted, and how fast that was."""
    results = json.loads(path.read_text(encoding="utf-8"))
    dataset, temperature, batch = path.parent.name.split("-")
    summary, method = results["summary"], results["provenance"]["method"]
    low, high = (results["intervals"].get("speedup") or {}).get("ci95") or (math.nan, math.nan)
    choice = method.get("shape") or {}
    draft = method.get("draft") or {}
    return {
        "drafter": path.parent.parent.name,
        "dataset": dataset,
        "temperature": float(temperature.removeprefix("t")),
        "batch": int(batch.removeprefix("b")),
        "drafts": str(DraftShape.from_json(choice["shape"])) if choice else "",
        "best_drafts": str(DraftShape.from_json(choice["best"])) if choice else "",
        "predicted_speedup": choice.get("predicted_speedup"),
        "predicted_length": choice.get("acceptance_length"),
        "acceptance_length": summary.get("mean_acceptance_length"),
        "draft_token_cost": summary.get("draft_token_cost"),
        "speedup": summary["speedup"],
        "low": low,
        "high": high,
        "draft_bytes": draft.get("bytes"),
        "outputs_equal": summary.get("outputs_equal"),
    }


def markdown(rows: pd.DataFrame) -> str:
    """Return a table with a line per drafter and setting."""
    lines = [
        "| drafter | dataset, temperature, batch | best shape | tokens per step and speed foretold "
        "for it | decoded with | acceptance length | speedup |",
        "|---" * 7 + "|",
    ]
    for row in rows.itertuples():
        foretold = f"{row.predicted_length:.2f}; {row.predicted_speedup:.2f}"
        length = "" if math.isnan(row.acceptance_length) else f"{row.acceptance_length:.2f}"
        lines.append(
            f"| {row.drafter} | {row.dataset}, {row.temperature:g}, {row.batch} "
            f"| {row.best_drafts} | {foretold} | {row.drafts} | {length} "
            f"| {row.speedup:.2f} ({row.low:.2f} to {row.high:.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    cells = [read_cell(path) for path in sorted(runs.glob(f"*/*/{RESULTS}"))]
    if not cells:
        raise SystemExit(f"{runs} holds no results of run.sh; give the folder that it wrote to")
    rows = pd.DataFrame(cells).sort_values(CELL)
    rows["acceptance_length"] = rows["acceptance_length"].astype(float)
    rows.round(4).to_csv(HERE / "results.csv", index=False)
    table = markdown(rows)
    (HERE / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
