"""Compare the speedups of two methods on the same prompts.

    python experiments/training/paired.py outputs/cascade-1 outputs/cascade-2 \\
        --than outputs/ngram-1 outputs/ngram-2

Speedups are over plain decoding in each method's own runs, of one setting at batch size 1. The
interval (95%) is over prompts, the same for all runs.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from specresearch.files.jsonl import read_jsonl
from specresearch.statistics import interval_of


def seconds(runs: list[Path]) -> pd.DataFrame:
    """Return the seconds of every prompt with the method and without, over all runs."""
    parts = []
    for run in runs:
        if not json.loads((run / "results.json").read_text(encoding="utf-8"))["complete"]:
            raise SystemExit(f"{run} is not complete: run it again with resume=true")
        parts.append(pd.DataFrame(read_jsonl(run / "groups.jsonl")))
    rows = pd.concat(parts)
    if not (rows["num_requests"] == 1).all():
        raise SystemExit("prompts can only be paired at batch size 1")
    return rows.pivot_table(index="group", columns="side", values="wall", aggfunc="sum")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--than", nargs="+", type=Path, required=True)
    args = parser.parse_args()
    sides = [seconds(args.runs), seconds(args.than)]
    if not sides[0].index.equals(sides[1].index):
        raise SystemExit(
            "the runs are of different prompts; use the same dataset, num_prompts and seed"
        )
    totals = np.concatenate(
        [side[["baseline", "method"]].to_numpy(dtype=float) for side in sides], axis=1
    )
    speedups = totals[:, [0, 2]].sum(0) / totals[:, [1, 3]].sum(0)
    between = interval_of(totals, lambda t: t[..., 0] / t[..., 1] / (t[..., 2] / t[..., 3]))
    spread = (
        "too few prompts for an interval"
        if between is None
        else f"{between[0]:.3f} to {between[1]:.3f}"
    )
    print(
        f"speedups {speedups[0]:.3f} and {speedups[1]:.3f}; "
        f"ratio {speedups[0] / speedups[1]:.3f} ({spread})"
    )


if __name__ == "__main__":
    main()
