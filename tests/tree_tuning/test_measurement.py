"""Measure acceptance by rank and step times from the steps of runs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from specresearch.tree_tuning.measurement import measure


def write_steps(folder: Path, rows: list[dict], **config: Any) -> Path:
    frame = pd.DataFrame(rows)
    frame.to_parquet(folder / "steps.parquet")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def baseline(verify: float = 0.0081) -> dict:
    return {
        "side": "baseline",
        "num_nodes": 1,
        "verify": verify,
        "propose": 0.0,
        "draft_depth": [0],
        "num_accepted_tokens": [0],
        "accepted_ranks": None,
        "num_children": None,
    }


def step(
    ranks: list[int], children: list[int], verify: float = 0.009, propose: float = 0.002
) -> dict:
    return baseline(verify) | {
        "side": "method",
        "num_nodes": 10,
        "propose": propose,
        "draft_depth": [2],
        "num_accepted_tokens": [len(ranks)],
        "accepted_ranks": [ranks],
        "num_children": [children],
    }


def test_measures_acceptance_by_rank_and_times(tmp_path: Path) -> None:
    run = write_steps(
        tmp_path,
        [baseline(), step([0], [3, 2]), step([2, 0], [3, 1, 0]), step([], [3]), step([1], [3, 0])],
    )
    measurement = measure(run)
    assert measurement.num_visits == (6, 5, 4)
    assert measurement.rank_acceptance == pytest.approx((2 / 6, 1 / 5, 1 / 4))
    assert measurement.draft_level == pytest.approx(1e-3)
    assert (measurement.verify_base, measurement.verify_node) == pytest.approx((0.008, 0.0001))


def test_runs_of_several_shapes_separate_the_costs_of_levels_and_nodes(tmp_path: Path) -> None:
    """A tree of 9 drafts in 2 levels takes 3 ms to grow, a chain of 2 takes 1.6 ms."""
    tree, chain = tmp_path / "tree", tmp_path / "chain"
    for folder in (tree, chain):
        folder.mkdir()
    write_steps(
        tree,
        [baseline(), step([0], [3, 2], propose=0.003)],
        batch_size=1,
        proposer={"tree": "static"},
    )
    row = {"num_nodes": 3, "num_accepted_tokens": [2], "accepted_ranks": None, "num_children": None}
    write_steps(
        chain,
        [baseline(), step([], [], propose=0.0016) | row],
        batch_size=1,
        proposer={"tree": "chain"},
    )
    measurement = measure(tree, chain)
    assert (measurement.draft_level, measurement.draft_node) == pytest.approx((0.6e-3, 0.2e-3))
    assert measurement.num_visits == (4, 2, 1)
    assert measurement.step_time(2, 10) - measurement.step_time(0, 10) == pytest.approx(1.2e-3)


def test_runs_with_different_settings_are_rejected(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "eight")]
    for folder, batch_size in zip(folders, (1, 8), strict=True):
        folder.mkdir()
        write_steps(
            folder, [baseline(), step([0], [3, 2])], batch_size=batch_size, num_prompts=batch_size
        )
    with pytest.raises(
        ValueError,
        match=r"one and .*eight are of different settings: batch_size is 1 and 8; times and",
    ):
        measure(*folders)


def test_a_chain_measures_rank_0_only(tmp_path: Path) -> None:
    rows = [
        baseline(),
        step([], []) | {"num_accepted_tokens": [1], "accepted_ranks": None, "num_children": None},
    ]
    measurement = measure(write_steps(tmp_path, rows))
    assert (measurement.rank_acceptance, measurement.num_visits) == ((0.5,), (2,))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([baseline()], "drafted nothing"),
        ([step([], [1])], "only passes of 10 nodes"),
        (None, "holds no steps.parquet"),
    ],
)
def test_runs_that_lack_a_measurement_are_rejected(
    tmp_path: Path, rows: list[dict] | None, complaint: str
) -> None:
    if rows:
        write_steps(tmp_path, rows)
    with pytest.raises(ValueError, match=complaint):
        measure(tmp_path)
