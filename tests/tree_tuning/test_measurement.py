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


def lookup_step(num_drafts: list[int], num_accepted: list[int]) -> dict:
    return {
        "side": "method",
        "num_nodes": 1 + max(num_drafts),
        "verify": 0.008 + 0.0001 * (1 + max(num_drafts)),
        "propose": 0.0002 if any(num_drafts) else 0.0001,
        "draft_depth": num_drafts,
        "num_accepted_tokens": num_accepted,
        "accepted_ranks": None,
        "num_children": None,
    }


@pytest.mark.parametrize("num_empty", [0, 30, 300])
def test_the_tree_that_a_lookup_drafted_is_predicted_as_fast_as_it_was(
    tmp_path: Path, num_empty: int
) -> None:
    """Lookups that find nothing cost a step each and deliver one token."""
    drafted = [lookup_step([2], [2])] * 4 + [lookup_step([2], [1]), lookup_step([2], [0])]
    steps = drafted * 10 + [lookup_step([0], [0])] * num_empty
    measurement = measure(write_steps(tmp_path, [baseline(), *steps]))
    num_tokens = sum(1 + step["num_accepted_tokens"][0] for step in steps)
    seconds = sum(step["propose"] + step["verify"] for step in steps)
    assert measurement.undrafted.num_rows == len(steps)
    assert measurement.undrafted.num_empty == num_empty
    accepted = 9 / 11  # of the 11 drafts that were judged in each six steps, 9 were accepted
    expected = 1 + accepted + accepted**2
    predicted = measurement.time_per_token(expected, measurement.step_time(2, 3))
    assert predicted == pytest.approx(seconds / num_tokens, rel=0.03)
    per_step = measurement.tokens_per_step(expected)
    assert per_step == pytest.approx(num_tokens / len(steps), rel=0.03)


def test_requests_without_drafts_wait_for_those_with_drafts(tmp_path: Path) -> None:
    steps = [lookup_step([2, 0], [1, 0]), lookup_step([0, 0], [0, 0])]
    undrafted = measure(write_steps(tmp_path, [baseline(), *steps])).undrafted
    assert (undrafted.num_drafted, undrafted.num_beside, undrafted.num_empty) == (1, 1, 2)
    assert undrafted.empty_share == pytest.approx(2 / 5)
    assert undrafted.empty_step == pytest.approx(0.0082)
    assert undrafted.tokens_beside(2.0) == 1.5


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
