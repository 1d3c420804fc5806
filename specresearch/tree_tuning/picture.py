"""Where in their trees a run's drafts were accepted, as a table and as pictures: by node, by depth and by rank."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specresearch.bench.folder import STEPS
from specresearch.rows import METHOD
from specresearch.tree_tuning.choice import accepted_paths

MOST_LABELS = 40


def node_acceptance(run: Path) -> pd.DataFrame:
    """One row per node, named by its path of child ranks: depth, rank, reached, accepted, rate.

    reached: how often its parent was on the accepted path and it was there to choose; rate: accepted / reached. Raises
    ValueError for a run without trees.
    """
    file = run / STEPS
    if not file.is_file():
        raise ValueError(
            f"{run} holds no {STEPS}; give the folder of a finished python -m specresearch.run"
        )
    steps = pd.read_parquet(file)
    drafted = steps.loc[steps["side"] == METHOD]
    if drafted["num_children"].isna().all():
        raise ValueError(
            f"the drafts of {run} are chains; measure with a proposer that grows trees (proposer.tree=static)"
        )
    reached: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[tuple[int, ...]] = Counter()
    for ranks, children in accepted_paths(drafted):
        path = tuple(int(rank) for rank in ranks)
        for depth, num in enumerate(children):
            reached.update((*path[:depth], rank) for rank in range(int(num)))
        accepted.update(path[:depth] for depth in range(1, len(path) + 1))
    paths = sorted(reached, key=lambda path: (len(path), path))
    return pd.DataFrame(
        {
            "path": paths,
            "depth": [len(path) for path in paths],
            "rank": [path[-1] for path in paths],
            "reached": [reached[path] for path in paths],
            "accepted": [accepted[path] for path in paths],
            "rate": [accepted[path] / reached[path] for path in paths],
        }
    )


def draw_tree(nodes: pd.DataFrame, axes: Axes, max_depth: int = 6) -> None:
    """The tree, a node's area by how often it was accepted and its colour by how often when it was reached, which stands below
    it where there are few nodes."""
    shown = nodes.loc[nodes["depth"] <= max_depth]
    paths = list(shown["path"])
    places = _layout([(), *paths])
    for path in paths:
        (x, y), (x0, y0) = places[path], places[path[:-1]]
        axes.plot([x0, x], [y0, y], color="0.8", linewidth=1, zorder=1)
    accepted = shown["accepted"].to_numpy()
    areas, rates = 20 + 700 * accepted / max(int(accepted.max()), 1), shown["rate"].to_numpy()
    xs, ys = zip(*(places[path] for path in paths), strict=True)
    drawn = axes.scatter(xs, ys, s=areas, c=rates, cmap="viridis", vmin=0, vmax=1, zorder=2)
    axes.scatter(*places[()], s=80, color="black", zorder=2)
    if len(paths) <= MOST_LABELS:
        for path, area, rate in zip(paths, areas, rates, strict=True):
            text = axes.annotate(
                f"{rate:.2f}", places[path], (0, -(area**0.5) / 2 - 1), textcoords="offset points"
            )
            text.set(
                ha="center",
                va="top",
                fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    depths = range(max(map(len, paths)) + 1)
    axes.set_yticks([-depth for depth in depths], [str(depth) for depth in depths])
    axes.set_ylabel("depth")
    axes.set_xticks([])
    axes.set_ylim(-max(depths) - 0.6, 0.4)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    colours = axes.figure.colorbar(drawn, ax=axes)
    colours.set_label("accepted when reached")


def draw_by_rank(nodes: pd.DataFrame, axes: Axes) -> None:
    """How often the child of each rank was the accepted one, over all nodes that had it."""
    rank = nodes["rank"].to_numpy()
    accepted, reached = (
        np.bincount(rank, nodes[name].to_numpy()) for name in ("accepted", "reached")
    )
    axes.bar(np.arange(len(reached)), accepted / np.maximum(reached, 1), color="tab:blue")
    axes.set_xticks(np.arange(len(reached)))
    axes.set_xlabel("rank of the child")
    axes.set_ylabel("accepted when reached")


def draw_by_depth(nodes: pd.DataFrame, axes: Axes) -> None:
    """How often some child was accepted at each depth, among the steps that came so far."""
    depth, is_first = nodes["depth"].to_numpy(), (nodes["rank"] == 0).to_numpy()
    accepted = np.bincount(depth, nodes["accepted"].to_numpy())[1:]
    came = np.bincount(
        depth[is_first], nodes["reached"].to_numpy()[is_first], minlength=len(accepted) + 1
    )[1:]
    axes.bar(np.arange(1, len(accepted) + 1), accepted / np.maximum(came, 1), color="tab:orange")
    axes.set_xticks(np.arange(1, len(accepted) + 1))
    axes.set_xlabel("depth")
    axes.set_ylabel("some child accepted when reached")


def _layout(paths: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[float, float]]:
    """Leaves side by side, every parent above the middle of its children."""
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {path: [] for path in paths}
    for path in paths:
        if path:
            children[path[:-1]].append(path)
    places: dict[tuple[int, ...], tuple[float, float]] = {}
    num_leaves = 0
    for path in sorted(paths):
        if not children[path]:
            places[path] = (float(num_leaves), -float(len(path)))
            num_leaves += 1
    for path in sorted((path for path in paths if children[path]), key=len, reverse=True):
        xs = [places[child][0] for child in children[path]]
        places[path] = ((min(xs) + max(xs)) / 2, -float(len(path)))
    return places
