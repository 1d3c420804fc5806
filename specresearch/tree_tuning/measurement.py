"""What runs measured about draft trees: acceptance by rank, and the times of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Int
from scipy.optimize import nnls

from specresearch.bench.folder import STEPS
from specresearch.progress import Progress
from specresearch.results import folder
from specresearch.results.folder import differing_settings, read_config
from specresearch.rows import METHOD

SHAPE_KEYS = ("tree", "paths", "num_draft_tokens", "depth", "top_k")  # of a proposer's drafts
# settings in which runs may differ, and still be measured together
INDIFFERENT = (
    *folder.INDIFFERENT,
    "num_prompts",
    "repeats",
    "warmup",
    "record",
    *(f"proposer.{key}" for key in SHAPE_KEYS),
)


@dataclass(frozen=True)
class Undrafted:
    """What a run decoded without drafts: lookups without a match, and the last tokens of outputs.

    The counts are of rows: a request in a step.

    Attributes:
        num_drafted: Rows with drafts.
        num_beside: Rows without drafts in a step in which another request had some.
        num_empty: Rows in steps in which no request had drafts.
        empty_share: Share of the output that the `num_empty` rows delivered. It depends on the
            text, so another tree leaves it as it is.
        empty_step: Seconds of a step in which no request had drafts.
    """

    num_drafted: int = 1
    num_beside: int = 0
    num_empty: int = 0
    empty_share: float = 0.0
    empty_step: float = 0.0

    @property
    def num_rows(self) -> int:
        return self.num_drafted + self.num_beside + self.num_empty

    def tokens_beside(self, expected: float) -> float:
        """Return the mean tokens of a row in a step with drafts, `expected` of them with drafts."""
        num_rows = self.num_drafted + self.num_beside
        return (self.num_drafted * expected + self.num_beside) / num_rows


@dataclass(frozen=True)
class TreeMeasurement:
    """Acceptance and times of draft trees. Times are in seconds.

    Attributes:
        rank_acceptance: How often the child of each rank was accepted, among the nodes on
            accepted paths that had such a child.
        num_visits: How many such nodes there were, by rank.
        draft_level: Time to draft a level of a tree.
        verify_base: Time to verify, whatever the number of nodes.
        verify_node: Time to verify each node, root included, on top of it.
        draft_node: Time to draft each node, on top of that of its level.
        undrafted: What was decoded without drafts.
    """

    rank_acceptance: tuple[float, ...]
    num_visits: tuple[int, ...]
    draft_level: float
    verify_base: float
    verify_node: float
    draft_node: float = 0.0
    undrafted: Undrafted = Undrafted()

    @property
    def falling_acceptance(self) -> tuple[float, ...]:
        """The acceptance to build trees on, in which no rank exceeds the one before it.

        Few visits can make it seem that one does.
        """
        return tuple(accumulate(self.rank_acceptance, min))

    def step_time(self, depth: int, num_nodes: int) -> float:
        """Return the predicted seconds of a step with a tree of this size, root included."""
        propose = depth * self.draft_level + (num_nodes - 1) * self.draft_node
        return propose + self.verify_base + num_nodes * self.verify_node

    def tokens_per_step(self, expected: float) -> float:
        """Return the mean tokens of all steps, if a row with drafts delivers `expected`."""
        share = self.undrafted.empty_share
        return 1 / (share + (1 - share) / self.undrafted.tokens_beside(expected))

    def time_per_token(self, expected: float, seconds: float) -> float:
        """Return the mean seconds per token of a request, if a step with drafts takes `seconds`."""
        share = self.undrafted.empty_share
        drafted = seconds / self.undrafted.tokens_beside(expected)
        return share * self.undrafted.empty_step + (1 - share) * drafted


def measure(*runs: Path) -> TreeMeasurement:
    """Measure acceptance and times from the steps.parquet of runs in one setting.

    Runs with other shapes of drafts separate the time of a level from that of a node.

    Raises:
        ValueError: If the runs lack what is needed, or differ in more than the shape of drafts.
    """
    frames = []
    with Progress(len(runs), "runs", what="reading") as progress:
        for run in runs:
            frames.append(_read_drafting_run(run))
            progress.advance()
    for run in runs[1:]:
        _check_same_setting(runs[0], run)
    steps = pd.concat(frames)
    accepted, visits = _count_by_rank(drafting_steps(steps))
    times = steps.groupby("num_nodes").verify.agg(["median", "size"])
    if len(times) == 1:
        raise ValueError(
            f"run={runs[0]} verified only passes of {times.index[0]} nodes; "
            "a time per node needs two sizes"
        )
    verify_node, verify_base = np.polyfit(
        times.index.to_numpy(dtype=float),
        times["median"].to_numpy(),
        1,
        w=np.sqrt(times["size"].to_numpy(dtype=float)),
    )
    draft_level, draft_node = _fit_draft_times([drafting_steps(frame) for frame in frames])
    return TreeMeasurement(
        rank_acceptance=tuple((accepted / np.maximum(visits, 1)).tolist()),
        num_visits=tuple(visits.tolist()),
        draft_level=draft_level,
        verify_base=float(verify_base),
        verify_node=max(float(verify_node), 0.0),
        draft_node=draft_node,
        undrafted=_count_undrafted(steps),
    )


def read_steps(run: Path) -> pd.DataFrame:
    """Read the steps of a finished run; raises ValueError if there are none."""
    file = run / STEPS
    if not file.is_file():
        raise ValueError(
            f"run={run} holds no {STEPS}; give the folder of a finished python -m specresearch.run"
        )
    return pd.read_parquet(file)


def _read_drafting_run(run: Path) -> pd.DataFrame:
    steps = read_steps(run)
    if "draft_depth" not in steps:
        raise ValueError(
            f"run={run} is a load test, whose steps do not say what was drafted where; give the "
            "folder of a python -m specresearch.run"
        )
    if drafting_steps(steps).empty:
        raise ValueError(
            f"run={run} drafted nothing; measure one with a proposer, "
            "best with proposer.tree=static"
        )
    return steps


def _check_same_setting(first: Path, other: Path) -> None:
    differing = differing_settings(read_config(first), read_config(other), INDIFFERENT)
    if differing:
        listed = "; ".join(f"{key} is {one!r} and {another!r}" for key, one, another in differing)
        raise ValueError(
            f"{first} and {other} are of different settings: {listed}; times and acceptance of "
            "both only go together if they differ in the shape of drafts alone"
        )


def drafting_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of the method in which a request had drafts."""
    return steps.loc[(steps["side"] == METHOD) & steps["draft_depth"].map(any)]


def _count_undrafted(steps: pd.DataFrame) -> Undrafted:
    """Count the rows without drafts, and time the steps in which no row had any."""
    method = steps.loc[steps["side"] == METHOD]
    num_drafted = num_beside = num_empty = num_accepted = 0
    for depths, accepted in zip(method["draft_depth"], method["num_accepted_tokens"], strict=True):
        num_rows = int(np.count_nonzero(depths))
        if not num_rows:
            num_empty += len(depths)
            continue
        num_drafted += num_rows
        num_beside += len(depths) - num_rows
        num_accepted += int(sum(accepted))
    empty = method.loc[~method["draft_depth"].map(any)]
    return Undrafted(
        num_drafted=num_drafted,
        num_beside=num_beside,
        num_empty=num_empty,
        empty_share=num_empty / (num_empty + num_beside + num_drafted + num_accepted),
        empty_step=float((empty["propose"] + empty["verify"]).median()) if num_empty else 0.0,
    )


def _fit_draft_times(runs: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Return the seconds of a level, and of a draft in it; one run cannot separate them."""
    levels = np.array([steps["draft_depth"].map(max).mean() for steps in runs])
    drafts = np.array([steps["num_nodes"].mean() - 1 for steps in runs])
    seconds = np.array([steps["propose"].mean() for steps in runs])
    if len(runs) == 1:
        return float(seconds[0] / levels[0]), 0.0
    level, node = nnls(np.stack([levels, drafts], axis=1), seconds)[0].tolist()
    return level, node


def _count_by_rank(
    steps: pd.DataFrame,
) -> tuple[Int[np.ndarray, " R"], Int[np.ndarray, " R"]]:
    """Return accepted children and visited nodes by rank."""
    paths = list(accepted_paths(steps))
    num_ranks = max((max(children, default=0) for _, children in paths), default=0)
    accepted = np.zeros(num_ranks, dtype=np.int64)
    visits = np.zeros(num_ranks, dtype=np.int64)
    for ranks, children in paths:
        for num in children:
            visits[:num] += 1
        np.add.at(accepted, np.asarray(ranks, dtype=np.int64), 1)
    return accepted, visits


def accepted_paths(steps: pd.DataFrame) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the accepted path of every draft.

    Returns:
        The ranks of the accepted nodes, and the number of children of the root and of each of
        them. Drafts of a chain have rank 0.
    """
    depth = "judged_depth" if "judged_depth" in steps else "draft_depth"
    columns = [steps["accepted_ranks"], steps["num_children"]]
    columns += [steps["num_accepted_tokens"], steps[depth]]
    for ranks, children, num_accepted, depths in zip(*columns, strict=True):
        if children is None:
            for num, deepest in zip(num_accepted, depths, strict=True):
                yield [0] * num, [1] * min(num + 1, deepest)
        else:
            yield from zip(ranks, children, strict=True)
