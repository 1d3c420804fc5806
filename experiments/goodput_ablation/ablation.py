"""Switch off each mechanism of `controller=goodput` in turn, on simulated streams.

    PYTHONPATH=tests:tests/controllers python experiments/goodput_ablation/ablation.py

Writes results.csv, a row for each mechanism and stream, and results.png.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from simulation import Machine
from stream import Stream
from tree_stream import TreeStream, Whole
from variants import VARIANTS

from specresearch.controllers import Fixed

HERE = Path(__file__).parent
SEEDS = range(8)
LENGTHS = (0, 1, 2, 3, 5, 10)
BUSY = Machine(draft=2e-3, verify=11e-3, verify_token=3e-3)
NEAR = Machine(draft=2.4e-3, verify=8.2e-3, verify_token=0.25e-3)
ALONE = Machine(draft=0.05e-3, verify=4.5e-3, verify_token=0.3e-3)
STREAMS = {
    "gains little": Stream(replace(NEAR, draft=2.1e-3, verify_token=0.17e-3), 8, 80, 0.57),
    "first refuse": Stream(NEAR, 4, 48, 0.57, first=0.05),
    "loses": Stream(Machine(draft=5e-3, verify=11e-3, verify_token=0.2e-3), 16, 96, 0.57),
    "gains much": Stream(Machine(draft=1.7e-3, verify=11e-3, verify_token=0.2e-3), 8, 64, 0.9),
    "alone": Stream(Machine(), 1, 20, 0.6),
    "busy": Stream(BUSY, 8, 64, 0.6),
    "lookup": Stream(
        Machine(draft=0.05e-3, verify_token=0.6e-3), 8, 64, 0.6, supply=0.4, prefills_lazily=False
    ),
    "lookup alone": Stream(
        replace(ALONE, verify_token=0.15e-3), 1, 40, 0.75, supply=0.25, prefills_lazily=False
    ),
    "lookup loses": Stream(ALONE, 1, 40, 0.5, supply=0.06, prefills_lazily=False),
    "busy between": Stream(Machine(), 4, 60, 0.7, busy=BUSY),
    "slow draft between": Stream(Machine(), 4, 60, 0.7, busy=Machine(draft=20e-3)),
    "acceptance falls": Stream(Machine(draft=2e-3), 4, 60, 0.9, last=0.15),
    "acceptance rises": Stream(Machine(draft=2e-3), 4, 60, 0.15, last=0.9),
    "requests turn": Stream(Machine(draft=2e-3), 4, 20, 0.9, turn=0.1, length=6),
    "absurd times": Stream(Machine(draft=2e-3), 4, 60, 0.65, absurd=0.01),
    "shared cores": Stream(Machine(draft=2.9e-3, verify=7.5e-3), 1, 24, 0.35, bursts=0.02),
    "slow control": Stream(Machine(draft=3e-3), 4, 60, 0.6, control=1.5e-3),
    "cold steps": Stream(Machine(draft=3e-3), 4, 60, 0.6, cold=3e-3),
    "32 in flight": Stream(Machine(verify=15e-3, verify_token=0.5e-3), 32, 128, 0.6),
}
DEAR = Machine(draft=0.5e-3, verify=8e-3, verify_token=0.5e-3)
TREES = {
    "cheap tree": TreeStream(Machine(draft=0.3e-3, verify=8e-3, verify_token=0.02e-3), 4, 200),
    "dear tree": TreeStream(DEAR, 4, 200),
    "tree too sure": TreeStream(DEAR, 4, 200, 0.7, 0.4),
    "losing tree": TreeStream(Machine(verify_token=1e-3), 8, 150, 0.4, 0.5),
}


def shares_of(name: str) -> list[dict[str, object]]:
    """Return each variant's share of the best fixed setting of a stream, the mean over seeds."""
    stream, rows = (STREAMS | TREES)[name], []
    fixed = [Fixed(k) for k in LENGTHS] if name in STREAMS else [Whole(k) for k in range(5)]
    best = [max(stream.throughput(setting, seed) for setting in fixed) for seed in SEEDS]
    for variant, make in VARIANTS.items():
        with make.switched_off():
            shares = [stream.throughput(make(), s) / b for s, b in zip(SEEDS, best, strict=True)]
        error = np.std(shares, ddof=1) / len(shares) ** 0.5
        rows.append({"stream": name, "variant": variant, "share": np.mean(shares), "error": error})
    return rows


def gains(results: pd.DataFrame) -> pd.DataFrame:
    """Return what every mechanism gains on every stream, in percent."""
    shares = results.pivot_table(index="variant", columns="stream", values="share", sort=False)
    return 100 * (1 - shares / shares.loc["goodput"]).drop(index="goodput")


def draw(gain: pd.DataFrame) -> None:
    figure, axes = plt.subplots(figsize=(13, 6), layout="constrained")
    axes.imshow(gain, cmap="RdBu_r", vmin=-10, vmax=10, aspect="auto")
    axes.set_xticks(range(gain.shape[1]), gain.columns, rotation=45, ha="right")
    axes.set_yticks(range(gain.shape[0]), gain.index)
    for (y, x), value in np.ndenumerate(gain.to_numpy()):
        colour = "white" if abs(value) > 7 else "black"
        label = f"{value:.0f}".replace("-0", "0")
        axes.text(x, y, label, color=colour, ha="center", va="center", fontsize=7)
    axes.set_title("Throughput lost without a mechanism, %")
    figure.savefig(HERE / "results.png", dpi=110)


def main() -> None:
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for part in pool.map(shares_of, STREAMS | TREES):
            rows += part
            results = pd.DataFrame(rows).round(4)
            results.to_csv(HERE / "results.csv", index=False)
    gain = gains(results)
    draw(gain)
    table = pd.DataFrame({"mean": gain.mean(axis=1), "most": gain.max(axis=1)})
    print(table.round(1).sort_values("mean", ascending=False).to_string())


if __name__ == "__main__":
    main()
