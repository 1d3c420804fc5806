"""Sequoia's choice (arXiv 2402.12374): the static tree that would have been fastest, going by what a run measured."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.tree import Tree
from scipy.optimize import nnls

from specresearch.bench.folder import STEPS
from specresearch.bench.rows import METHOD
from specresearch.proposers.sequoia import BestTree, best_trees, path_acceptance
from specresearch.results import folder
from specresearch.results.folder import differing_settings, read_config

SHAPE = ("tree", "paths", "num_draft_tokens", "depth", "top_k")  # of a proposer's drafts
# what runs may differ in whose times and acceptance go together
INDIFFERENT = (
    *folder.INDIFFERENT,
    "num_prompts",
    "repeats",
    "warmup",
    "record",
    *(f"proposer.{key}" for key in SHAPE),
)


@dataclass(frozen=True)
class Measured:
    """What a run says about trees. Times in seconds.

    rank_acceptance[r]: how often the child of rank r was the accepted one, among the nodes on the accepted path that had
    such a child; num_visits[r]: how many such nodes there were. draft_level, draft_node: drafting, per level of the tree and
    per draft in it. verify(m) is verify_base + m * verify_node for m nodes, the root included.
    """

    rank_acceptance: tuple[float, ...]
    num_visits: tuple[int, ...]
    draft_level: float
    verify_base: float
    verify_node: float
    draft_node: float = 0.0

    @property
    def falling_acceptance(self) -> tuple[float, ...]:
        """What to build on: no rank more often accepted than the one before, as few visits can make it seem."""
        return tuple(accumulate(self.rank_acceptance, min))

    def step_time(self, depth: int, num_nodes: int) -> float:
        propose = depth * self.draft_level + (num_nodes - 1) * self.draft_node
        return propose + self.verify_base + num_nodes * self.verify_node


@dataclass(frozen=True)
class Choice:
    """paths: of child ranks, for proposer.paths, the likeliest to be accepted first. predicted_speedup: over plain decoding,
    prefill and host costs left out."""

    paths: tuple[tuple[int, ...], ...]
    num_draft_tokens: int
    depth: int
    expected_tokens: float
    predicted_speedup: float


def measure(*runs: Path) -> Measured:
    """From the steps.parquet of runs with a drafter in one setting; those with other shapes tell a level's time from a node's.

    Raises ValueError when they cannot say what is needed, and for runs that differ in more than the shape of drafts.
    """
    each = [_read(run) for run in runs]
    for run in runs[1:]:
        _check_one_setting(runs[0], run)
    steps = pd.concat(each)
    accepted, visits = _by_rank(_drafted(steps))
    times = steps.groupby("num_nodes").verify.agg(["median", "size"])
    if len(times) == 1:
        raise ValueError(
            f"run={runs[0]} verified only passes of {times.index[0]} nodes; a time per node needs two sizes"
        )
    weights = np.sqrt(times["size"].to_numpy(dtype=float))
    slope, base = np.polyfit(
        times.index.to_numpy(dtype=float), times["median"].to_numpy(), 1, w=weights
    )
    level, node = _draft_times([_drafted(part) for part in each])
    return Measured(
        tuple((accepted / np.maximum(visits, 1)).tolist()),
        tuple(visits.tolist()),
        level,
        float(base),
        max(float(slope), 0.0),
        node,
    )


def _read(run: Path) -> pd.DataFrame:
    file = run / STEPS
    if not file.is_file():
        raise ValueError(
            f"run={run} holds no {STEPS}; give the folder of a finished python -m specresearch.run"
        )
    steps = pd.read_parquet(file)
    if _drafted(steps).empty:
        raise ValueError(
            f"run={run} drafted nothing; measure one with a proposer, best with proposer.tree=static"
        )
    return steps


def _check_one_setting(first: Path, other: Path) -> None:
    differing = differing_settings(read_config(first), read_config(other), INDIFFERENT)
    if differing:
        told = "; ".join(f"{key} is {one!r} and {another!r}" for key, one, another in differing)
        raise ValueError(
            f"{first} and {other} are of different settings: {told}; times and acceptance of both only go together where they "
            "differ in the shape of drafts alone"
        )


def _drafted(steps: pd.DataFrame) -> pd.DataFrame:
    return steps.loc[(steps["side"] == METHOD) & (steps["num_nodes"] > 1)]


def _draft_times(runs: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Seconds of a level and of a draft in it; of one run, whose shape is one, the level takes all."""
    levels = np.array([part["draft_depth"].map(max).mean() for part in runs])
    drafts = np.array([part["num_nodes"].mean() - 1 for part in runs])
    seconds = np.array([part["propose"].mean() for part in runs])
    if len(runs) == 1:
        return float(seconds[0] / levels[0]), 0.0
    level, node = nnls(np.stack([levels, drafts], axis=1), seconds)[0].tolist()
    return level, node


def _by_rank(steps: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Accepted children and visited nodes by rank."""
    pairs = list(accepted_paths(steps))
    most = max((max(children, default=0) for _, children in pairs), default=0)
    accepted, visits = np.zeros(most, dtype=np.int64), np.zeros(most, dtype=np.int64)
    for ranks, children in pairs:
        for num in children:
            visits[:num] += 1
        np.add.at(accepted, np.asarray(ranks, dtype=np.int64), 1)
    return accepted, visits


def accepted_paths(steps: pd.DataFrame) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """For every draft, the ranks of the accepted nodes, and the children that there were at the root and at each of them.

    A chain's drafts have rank 0.
    """
    judged = "judged_depth" if "judged_depth" in steps else "draft_depth"
    names = ("accepted_ranks", "num_children", "num_accepted_tokens", judged)
    for ranks, children, num_accepted, depths in zip(*(steps[name] for name in names), strict=True):
        if children is None:
            for num, depth in zip(num_accepted, depths, strict=True):
                yield [0] * num, [1] * min(num + 1, depth)
        else:
            yield from zip(ranks, children, strict=True)


def choose(measured: Measured, max_draft_tokens: int, max_depth: int) -> list[Choice]:
    """The best tree of every size, the fastest of all first."""
    plain = measured.step_time(0, 1)
    by_size: dict[int, Choice] = {}
    for tree in best_trees(measured.falling_acceptance, max_draft_tokens, max_depth):
        choice = _judge(measured, tree, plain)
        known = by_size.get(choice.num_draft_tokens)
        if choice.paths and (known is None or choice.predicted_speedup > known.predicted_speedup):
            by_size[choice.num_draft_tokens] = choice
    return sorted(by_size.values(), key=lambda choice: -choice.predicted_speedup)


def _judge(measured: Measured, tree: BestTree, plain: float) -> Choice:
    seconds = measured.step_time(tree.depth, len(tree.paths) + 1)
    return Choice(
        tree.paths, len(tree.paths), tree.depth, tree.expected, tree.expected * plain / seconds
    )


def print_choice(
    measured: Measured, choices: Sequence[Choice], console: Console | None = None
) -> None:
    """Acceptance by rank, the best sizes, and a picture of the winner."""
    console = console or Console(highlight=False)
    ranks = Table(
        "rank of the child", *map(str, range(len(measured.rank_acceptance))), title="measured"
    )
    ranks.add_row("accepted", *(f"{rate:.3f}" for rate in measured.rank_acceptance))
    ranks.add_row("of nodes", *map(str, measured.num_visits))
    console.print(ranks)
    console.print(
        f"drafting {1e3 * measured.draft_level:.2f} ms a level + {1e3 * measured.draft_node:.3f} ms a node; "
        f"verifying {1e3 * measured.verify_base:.2f} ms + {1e3 * measured.verify_node:.3f} ms a node"
    )
    sizes = Table("nodes", "depth", "tokens a step", "predicted speedup", title="best trees")
    for choice in choices[:5]:
        figures = (f"{choice.expected_tokens:.2f}", f"{choice.predicted_speedup:.2f}")
        sizes.add_row(str(choice.num_draft_tokens), str(choice.depth), *figures)
    console.print(sizes)
    picture = Tree("root")
    places: dict[tuple[int, ...], Tree] = {(): picture}
    for path in choices[0].paths:
        chance = path_acceptance(path, measured.falling_acceptance)
        places[path] = places[path[:-1]].add(f"{path[-1]}  [dim]{chance:.3f}[/dim]")
    console.print(picture)


def save_choice(choice: Choice, measured: Measured, runs: Sequence[Path], output: Path) -> None:
    """A JSON file that `proposer.paths` reads."""
    content = asdict(choice) | {"runs": list(map(str, runs)), "measured": asdict(measured)}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
