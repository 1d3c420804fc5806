"""Draw speedups.svg from the measurements in experiments/load/results.csv.

Run `python docs/images/speedups.py` from the root of the repository.
"""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

matplotlib.use("svg")
ROOT = Path(__file__).parents[2]
PANELS = {
    ("ngram", "cnndm"): "n-gram lookup, news articles",
    ("draft_model", "sharegpt"): "draft model, chats",
}
LINES = {
    "fixed-1": ("1 draft, fixed", "#2f80c9", "o"),
    "fixed-10": ("10 drafts, fixed", "#cf5f10", "s"),
    "method": ("goodput controller", "#1f9254", "D"),
}
INK, LIGHT_SCHEME, DARK_SCHEME = "#010203", "#1b1d22", "#e2e4e9"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specresearch",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_panel(axes: Axes, cells: pd.DataFrame, title: str) -> None:
    """Draw speedup against requests in flight, a line for each way to choose the draft length."""
    for column, (label, colour, marker) in LINES.items():
        axes.plot(cells["concurrency"], cells[column], color=colour, marker=marker, label=label)
    axes.axhline(1, color=INK, linewidth=1, linestyle="--", label="plain decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(cells["concurrency"], cells["concurrency"].astype(str))
    axes.set_ylim(0)
    axes.set_xlabel("requests in flight")
    axes.set_title(title, fontsize=10.5)
    axes.grid(axis="y", alpha=0.25)


def main() -> None:
    results = pd.read_csv(ROOT / "experiments" / "load" / "results.csv")
    greedy = results[results["temperature"] == 0].sort_values("concurrency")
    plt.rcParams.update(STYLE)
    figure, panels = plt.subplots(1, len(PANELS), figsize=(8.4, 3.6), layout="constrained")
    for axes, ((proposer, dataset), title) in zip(panels, PANELS.items(), strict=True):
        is_panel = (greedy["proposer"] == proposer) & (greedy["dataset"] == dataset)
        draw_panel(axes, greedy[is_panel], title)
    panels[0].set_ylabel("throughput / plain decoding's")
    panels[0].legend(frameon=False)

    file = ROOT / "docs" / "images" / "speedups.svg"
    figure.savefig(file, transparent=True, metadata={"Date": None})
    schemes = (
        f"<style>svg {{ --ink: {LIGHT_SCHEME} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ --ink: {DARK_SCHEME} }} }}</style>"
    )
    svg = file.read_text().replace(INK, "var(--ink)").replace("<defs>", f"{schemes}<defs>", 1)
    file.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
