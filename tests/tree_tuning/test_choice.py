"""Choose the fastest static tree, print it and write its file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from specresearch.proposers.shapes import TreeShape, read_paths
from specresearch.proposers.static_tree import StaticTree
from specresearch.tree_tuning.choice import choose, print_choice, save_choice, use
from specresearch.tree_tuning.measurement import TreeMeasurement, Undrafted

MEASUREMENT = TreeMeasurement(
    (0.6, 0.2, 0.1), (900, 900, 900), draft_level=1e-3, verify_base=8e-3, verify_node=1e-4
)


def test_costly_nodes_and_levels_make_smaller_trees() -> None:
    cheap = choose(MEASUREMENT, 32, 8)[0]
    costly_nodes = choose(TreeMeasurement((0.6, 0.2, 0.1), (9, 9, 9), 1e-3, 8e-3, 2e-3), 32, 8)[0]
    costly_levels = choose(TreeMeasurement((0.6, 0.2, 0.1), (9, 9, 9), 8e-3, 8e-3, 1e-4), 32, 8)[0]
    assert costly_nodes.num_draft_tokens < cheap.num_draft_tokens
    assert costly_levels.depth < cheap.depth
    assert cheap.predicted_speedup > 1


def test_predicted_speedup_is_that_of_a_simulation() -> None:
    """Random walks on the chosen tree give its tokens per second over plain decoding's."""
    choice = choose(MEASUREMENT, 12, 4)[0]
    paths, generator = set(choice.paths), np.random.default_rng(0)
    num_tokens, num_steps = 0, 20_000
    for _ in range(num_steps):
        node: tuple[int, ...] | None = ()
        while node is not None:
            num_tokens += 1
            drawn = generator.choice(4, p=[0.6, 0.2, 0.1, 0.1])
            node = (*node, int(drawn)) if (*node, int(drawn)) in paths else None
    seconds = num_steps * MEASUREMENT.step_time(choice.depth, len(paths) + 1)
    simulated = num_tokens / seconds * MEASUREMENT.step_time(0, 1)
    assert simulated == pytest.approx(choice.predicted_speedup, rel=0.03)


def test_steps_without_drafts_lower_the_predicted_speedup_towards_1() -> None:
    full = choose(MEASUREMENT, 12, 4)[0]
    for share in (0.2, 0.9):
        undrafted = Undrafted(empty_share=share, empty_step=MEASUREMENT.step_time(0, 1))
        choice = choose(replace(MEASUREMENT, undrafted=undrafted), 12, 4)[0]
        assert choice.paths == full.paths
        predicted = 1 / (share + (1 - share) / full.predicted_speedup)
        assert choice.predicted_speedup == pytest.approx(predicted)
        expected = 1 / (share + (1 - share) / full.expected_tokens)
        assert choice.expected_tokens == pytest.approx(expected)


def test_rows_without_drafts_beside_others_call_for_smaller_trees() -> None:
    undrafted = Undrafted(num_drafted=1, num_beside=7)
    choice = choose(replace(MEASUREMENT, undrafted=undrafted), 32, 8)[0]
    assert choice.num_draft_tokens < choose(MEASUREMENT, 32, 8)[0].num_draft_tokens


def test_the_advice_names_settings_that_the_proposer_has() -> None:
    tree = choose(MEASUREMENT, 8, 3)[0]
    rank_0 = TreeMeasurement((0.8,), (9,), draft_level=1e-3, verify_base=8e-3, verify_node=1e-4)
    chain = choose(rank_0, 3, 3)[0]
    static = "proposer.tree=static proposer.paths=best.json"
    assert use(tree, {"tree": "chain", "paths": None}, "best.json") == static
    assert use(tree, {"paths": None}, "best.json") == "proposer.paths=best.json"
    assert use(chain, {"num_draft_tokens": 10}, None) == "proposer.num_draft_tokens=3"
    assert use(tree, {"num_draft_tokens": 10}, None) is None
    by_chains = {"tree": "chain", "paths": None, "num_draft_tokens": None}
    assert use(chain, by_chains, None) == "proposer.tree=chain proposer.num_draft_tokens=3"
    assert use(tree, by_chains, None) is None


def test_a_saved_choice_is_a_proposer_setting(tmp_path: Path) -> None:
    choices = choose(MEASUREMENT, 8, 3)
    file = tmp_path / "trees" / "best.json"
    save_choice(choices[0], MEASUREMENT, [tmp_path], file)
    assert json.loads(file.read_text())["predicted_speedup"] == choices[0].predicted_speedup
    assert tuple(map(tuple, read_paths(str(file)))) == choices[0].paths
    shape = TreeShape("static", 1, str(file))
    assert shape.num_draft_tokens == choices[0].num_draft_tokens


def test_a_rank_favoured_by_chance_is_not_preferred() -> None:
    measurement = TreeMeasurement((0.6, 0.1, 0.05, 0.2), (900, 900, 900, 5), 1e-3, 8e-3, 1e-4)
    assert measurement.falling_acceptance == (0.6, 0.1, 0.05, 0.05)
    for choice in choose(measurement, 6, 2):
        assert StaticTree.from_paths(choice.paths).widths[1] == sum(
            len(path) == 1 for path in choice.paths
        )


def test_the_likeliest_paths_come_first() -> None:
    (choice,) = (choice for choice in choose(MEASUREMENT, 8, 3) if choice.num_draft_tokens == 8)
    probabilities = [
        np.prod([MEASUREMENT.rank_acceptance[rank] for rank in path]) for path in choice.paths
    ]
    assert probabilities == sorted(probabilities, reverse=True)
    assert StaticTree.from_paths(choice.paths).paths == choice.paths


def test_many_ranks_fit_a_terminal() -> None:
    rates = tuple(0.5 / (rank + 1) for rank in range(40))
    measurement = TreeMeasurement(rates, (900,) * 40, 1e-3, 8e-3, 1e-4)
    console = Console(record=True, width=80)
    print_choice(measurement, choose(measurement, 5, 2), console)
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "... (40 in all)" in " ".join(lines)
    assert "accepted, child of rank 0, 1, ...  0.50 0.25 0.17" in " ".join(lines)


def test_picture_shows_every_node() -> None:
    console = Console(record=True, width=100)
    choice = choose(MEASUREMENT, 5, 3)[:1]
    print_choice(MEASUREMENT, choice, console)
    text = console.export_text()
    assert f"{choice[0].predicted_speedup:.2f}" in text
    assert "Predicted speedup: over plain decoding, above 1 is faster" in text
    assert sum("── " in line for line in text.splitlines()) == choice[0].num_draft_tokens
