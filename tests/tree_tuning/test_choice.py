import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from rich.console import Console

from specresearch.proposers.shapes import TreeShape, read_paths
from specresearch.proposers.static_tree import StaticTree
from specresearch.tree_tuning.choice import Measured, choose, measure, print_choice, save_choice

MEASURED = Measured(
    (0.6, 0.2, 0.1), (900, 900, 900), draft_level=1e-3, verify_base=8e-3, verify_node=1e-4
)


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
    measured = measure(run)
    assert measured.num_visits == (6, 5, 4)
    assert measured.rank_acceptance == pytest.approx((2 / 6, 1 / 5, 1 / 4))
    assert measured.draft_level == pytest.approx(1e-3)
    assert (measured.verify_base, measured.verify_node) == pytest.approx((0.008, 0.0001))


def test_runs_of_other_shapes_tell_levels_from_nodes(tmp_path: Path) -> None:
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
    measured = measure(tree, chain)
    assert (measured.draft_level, measured.draft_node) == pytest.approx((0.6e-3, 0.2e-3))
    assert measured.num_visits == (4, 2, 1)
    assert measured.step_time(2, 10) - measured.step_time(0, 10) == pytest.approx(1.2e-3)


def test_runs_of_other_settings_do_not_go_together(tmp_path: Path) -> None:
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


def test_a_chain_knows_rank_0_only(tmp_path: Path) -> None:
    rows = [
        baseline(),
        step([], []) | {"num_accepted_tokens": [1], "accepted_ranks": None, "num_children": None},
    ]
    measured = measure(write_steps(tmp_path, rows))
    assert (measured.rank_acceptance, measured.num_visits) == ((0.5,), (2,))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([baseline()], "drafted nothing"),
        ([step([], [1])], "only passes of 10 nodes"),
        (None, "holds no steps.parquet"),
    ],
)
def test_runs_that_cannot_say(tmp_path: Path, rows: list[dict] | None, complaint: str) -> None:
    if rows:
        write_steps(tmp_path, rows)
    with pytest.raises(ValueError, match=complaint):
        measure(tmp_path)


def test_costly_nodes_and_levels_make_smaller_trees() -> None:
    cheap = choose(MEASURED, 32, 8)[0]
    costly_nodes = choose(Measured((0.6, 0.2, 0.1), (9, 9, 9), 1e-3, 8e-3, 2e-3), 32, 8)[0]
    costly_levels = choose(Measured((0.6, 0.2, 0.1), (9, 9, 9), 8e-3, 8e-3, 1e-4), 32, 8)[0]
    assert costly_nodes.num_draft_tokens < cheap.num_draft_tokens
    assert costly_levels.depth < cheap.depth
    assert cheap.predicted_speedup > 1


def test_predicted_speedup_is_that_of_a_simulation() -> None:
    """Walk the chosen tree at random many times: tokens per step over time per step, against one token per plain pass."""
    choice = choose(MEASURED, 12, 4)[0]
    paths, generator = set(choice.paths), np.random.default_rng(0)
    num_tokens, num_steps = 0, 20_000
    for _ in range(num_steps):
        node: tuple[int, ...] | None = ()
        while node is not None:
            num_tokens += 1
            drawn = generator.choice(4, p=[0.6, 0.2, 0.1, 0.1])
            node = (*node, int(drawn)) if (*node, int(drawn)) in paths else None
    seconds = num_steps * MEASURED.step_time(choice.depth, len(paths) + 1)
    simulated = num_tokens / seconds * MEASURED.step_time(0, 1)
    assert simulated == pytest.approx(choice.predicted_speedup, rel=0.03)


def test_what_is_saved_is_a_proposer_setting(tmp_path: Path) -> None:
    choices = choose(MEASURED, 8, 3)
    file = tmp_path / "trees" / "best.json"
    save_choice(choices[0], MEASURED, [tmp_path], file)
    assert json.loads(file.read_text())["predicted_speedup"] == choices[0].predicted_speedup
    assert tuple(map(tuple, read_paths(str(file)))) == choices[0].paths
    shape = TreeShape("static", 1, str(file))
    assert shape.num_draft_tokens == choices[0].num_draft_tokens


def test_a_rank_that_chance_favours_is_not_preferred() -> None:
    measured = Measured((0.6, 0.1, 0.05, 0.2), (900, 900, 900, 5), 1e-3, 8e-3, 1e-4)
    assert measured.falling_acceptance == (0.6, 0.1, 0.05, 0.05)
    for choice in choose(measured, 6, 2):
        assert StaticTree.from_paths(choice.paths).widths[1] == sum(
            len(path) == 1 for path in choice.paths
        )


def test_the_likeliest_paths_come_first() -> None:
    (choice,) = (choice for choice in choose(MEASURED, 8, 3) if choice.num_draft_tokens == 8)
    chances = [np.prod([MEASURED.rank_acceptance[rank] for rank in path]) for path in choice.paths]
    assert chances == sorted(chances, reverse=True)
    assert StaticTree.from_paths(choice.paths).paths == choice.paths


def test_picture_shows_every_node() -> None:
    console = Console(record=True, width=100)
    choice = choose(MEASURED, 5, 3)[:1]
    print_choice(MEASURED, choice, console)
    text = console.export_text()
    assert f"{choice[0].predicted_speedup:.2f}" in text
    assert sum("── " in line for line in text.splitlines()) == choice[0].num_draft_tokens
