"""Where in their trees a run's drafts were accepted: by node, by depth and by rank."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specresearch.rows import METHOD
from specresearch.tree_tuning.measurement import accepted_paths, read_steps

MAX_LABELS = 40


def node_acceptance(run: Path) -> pd.DataFrame:
    """Count how often each node of a run's trees was reached and accepted.

    Returns:
        One row per node, named by its path of child ranks: depth, rank, reached (how often it
        was drafted below a node on the accepted path), accepted, and rate = accepted / reached.

    Raises:
        ValueError: For a run without trees.
    """
    steps = read_steps(run)
    drafted = steps.loc[steps["side"] == METHOD]
    if drafted["num_children"].isna().all():
        raise ValueError(
            f"the drafts of {run} are chains; measure with a proposer that grows trees "
            "(proposer.tree=static)"
        )
    reached: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[tuple[int, ...]] = Counter()
    for ranks, children in accepted_paths(drafted):
        path = tuple(map(int, ranks))
        for depth, num in enumerate(children):
            reached.update((*path[:depth], rank) for rank in range(int(num)))
        accepted.update(path[:depth] for depth in range(1, len(path) + 1))
    paths = sorted(reached, key=lambda path: (len(path), path))
    nodes = pd.DataFrame({"path": paths})
    nodes["depth"] = [len(path) for path in paths]
    nodes["rank"] = [path[-1] for path in paths]
    nodes["reached"] = [reached[path] for path in paths]
    nodes["accepted"] = [accepted[path] for path in paths]
    nodes["rate"] = nodes["accepted"] / nodes["reached"]
    return nodes


def draw_tree(nodes: pd.DataFrame, axes: Axes, max_depth: int = 6) -> None:
    """Draw the tree of `node_acceptance`.

    The area of a node shows how often it was accepted, its colour how often when it was reached;
    small trees have this rate as a label.
    """
    shown = nodes.loc[nodes["depth"] <= max_depth]
    paths = list(shown["path"])
    positions = _layout([(), *paths])
    for path in paths:
        (x, y), (parent_x, parent_y) = positions[path], positions[path[:-1]]
        axes.plot([parent_x, x], [parent_y, y], color="0.8", linewidth=1, zorder=1)
    accepted = shown["accepted"].to_numpy()
    areas = 20 + 700 * accepted / max(int(accepted.max()), 1)
    rates = shown["rate"].to_numpy()
    xs, ys = zip(*(positions[path] for path in paths), strict=True)
    points = axes.scatter(xs, ys, s=areas, c=rates, cmap="viridis", vmin=0, vmax=1, zorder=2)
    axes.scatter(*positions[()], s=80, color="black", zorder=2)
    if len(paths) <= MAX_LABELS:
        for path, area, rate in zip(paths, areas, rates, strict=True):
            _label(axes, positions[path], f"{rate:.2f}", below=area**0.5 / 2 + 1)
    deepest = max(map(len, paths))
    axes.set_yticks([-depth for depth in range(deepest + 1)], list(map(str, range(deepest + 1))))
    axes.set_ylabel("depth")
    axes.set_xticks([])
    axes.set_ylim(-deepest - 0.6, 0.4)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    colours = axes.figure.colorbar(points, ax=axes)
    colours.set_label("accepted when reached")


def _label(axes: Axes, position: tuple[float, float], text: str, *, below: float) -> None:
    axes.annotate(
        text,
        position,
        (0, -below),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )


def draw_by_rank(nodes: pd.DataFrame, axes: Axes) -> None:
    """Draw how often the child of each rank was accepted, over all nodes that had it."""
    rank = nodes["rank"].to_numpy()
    accepted = np.bincount(rank, nodes["accepted"].to_numpy())
    reached = np.bincount(rank, nodes["reached"].to_numpy())
    axes.bar(np.arange(len(reached)), accepted / np.maximum(reached, 1), color="tab:blue")
    axes.set_xticks(np.arange(len(reached)))
    axes.set_xlabel("rank of the child")
    axes.set_ylabel("accepted when reached")


def draw_by_depth(nodes: pd.DataFrame, axes: Axes) -> None:
    """Draw how often some child was accepted at each depth, among the steps that got there."""
    depth = nodes["depth"].to_numpy()
    accepted = np.bincount(depth, nodes["accepted"].to_numpy())[1:]
    # A step that got to a depth reached the child of rank 0 there.
    first = nodes.loc[nodes["rank"] == 0]
    reached = np.bincount(
        first["depth"].to_numpy(), first["reached"].to_numpy(), minlength=len(accepted) + 1
    )[1:]
    depths = np.arange(1, len(accepted) + 1)
    axes.bar(depths, accepted / np.maximum(reached, 1), color="tab:orange")
    axes.set_xticks(depths)
    axes.set_xlabel("depth")
    axes.set_ylabel("some child accepted when reached")


def _layout(paths: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[float, float]]:
    """Put leaves side by side, and every parent above the middle of its children."""
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {path: [] for path in paths}
    for path in paths:
        if path:
            children[path[:-1]].append(path)
    positions: dict[tuple[int, ...], tuple[float, float]] = {}
    num_leaves = 0
    for path in sorted(paths):
        if not children[path]:
            positions[path] = (float(num_leaves), -float(len(path)))
            num_leaves += 1
    parents = [path for path in paths if children[path]]
    for path in sorted(parents, key=len, reverse=True):
        xs = [positions[child][0] for child in children[path]]
        positions[path] = ((min(xs) + max(xs)) / 2, -float(len(path)))
    return positions
