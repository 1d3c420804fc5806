"""Join the depths that `specresearch.layers` predicted with those that were decoded.

    python experiments/pairings/layer_skip/pictures.py outputs/layer_skip

writes results.csv and a picture of each target here; with a layers.json and `--settings exit 8` it
prints the settings that skip 8 sublayers in this way.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

from specresearch.layer_choice.output import NAMES, draw_curve
from specresearch.sweeps.callback import collect

HERE = Path(__file__).parent
MEASURED = ("speedup", "speedup_ci95_low", "speedup_ci95_high", "tokens_per_target_forward")


def num_skipped(row: dict[str, Any]) -> int:
    return len(row["skip_attention"]) + len(row["skip_mlp"])


def settings(file: Path, way: str, num: int) -> str:
    """Return the settings of the depth that skips so many sublayers."""
    depths = json.loads(file.read_text(encoding="utf-8"))["depths"]
    depth = next(row for row in depths if row["way"] == way and num_skipped(row) == num)
    names = ("skip_attention", "skip_mlp")
    return " ".join(f"proposer.{name}={json.dumps(depth[name])}".replace(" ", "") for name in names)


def join(folder: Path) -> pd.DataFrame:
    """Return the depths of one target, draw them, and add what was decoded."""
    content = json.loads((folder / "layers.json").read_text(encoding="utf-8"))
    num_layers = content["num_layers"]
    rows, points = [], {}
    for depth in content["depths"]:
        row = {"target": folder.name, "num_skipped": num_skipped(depth), **depth}
        run = folder / f"{depth['way']}-{num_skipped(depth)}"
        for measured in collect(run) if run.is_dir() else ():
            row |= {f"decoded_{name}": measured.get(name) for name in MEASURED}
            share = 1 - num_skipped(depth) / (2 * num_layers)
            points.setdefault(depth["way"], []).append((share, measured["speedup"]))
        rows.append(row)
    named = {NAMES[way]: measured for way, measured in points.items()}
    figure = draw_curve(content["depths"], num_layers, named)
    figure.savefig(HERE / f"{folder.name}.png", dpi=150)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--settings", nargs=2, metavar=("WAY", "NUMBER"))
    arguments = parser.parse_args()
    if arguments.settings:
        way, num = arguments.settings
        print(settings(arguments.folder, way, int(num)))
        return
    targets = [file.parent for file in sorted(arguments.folder.glob("*/layers.json"))]
    table = pd.concat([join(target) for target in targets])
    table.to_csv(HERE / "results.csv", index=False)
    print(table.to_markdown(index=False))


if __name__ == "__main__":
    main()
