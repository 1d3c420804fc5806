from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from specresearch.tree_tuning.picture import draw_by_depth, draw_by_rank, draw_tree, node_acceptance


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return steps of two requests, of one, of a cropped tree, and of the baseline."""
    frame = pd.DataFrame(
        {
            "side": ["method", "method", "method", "baseline"],
            "accepted_ranks": [[[0, 1], [1]], [[]], None, None],
            "num_children": [[[2, 2, 0], [2, 0]], [[2]], None, None],
            "num_accepted_tokens": [[2, 1], [0], [1], [0]],
            "draft_depth": [[2, 2], [2], [2], [0]],
        }
    )
    frame.to_parquet(tmp_path / "steps.parquet")
    return tmp_path


def test_acceptance_is_counted_by_node(run: Path) -> None:
    nodes = node_acceptance(run).set_index("path")
    assert nodes.reached.to_dict() == {(0,): 4, (1,): 3, (0, 0): 2, (0, 1): 1}
    assert nodes.accepted.to_dict() == {(0,): 2, (1,): 1, (0, 0): 0, (0, 1): 1}
    assert nodes.rate[(0, 1)] == 1.0


def test_pictures_show_every_node(run: Path) -> None:
    figure, (tree, rank, depth) = plt.subplots(1, 3)
    nodes = node_acceptance(run)
    draw_tree(nodes, tree)
    draw_by_rank(nodes, rank)
    draw_by_depth(nodes, depth)
    assert len(tree.collections[0].get_offsets()) == len(nodes)
    assert [bar.get_height() for bar in rank.patches] == pytest.approx([2 / 6, 2 / 4])
    assert [bar.get_height() for bar in depth.patches] == pytest.approx([3 / 4, 1 / 2])
    plt.close(figure)


def test_a_run_of_chains_has_no_picture(tmp_path: Path) -> None:
    pd.DataFrame({"side": ["method"], "accepted_ranks": [None], "num_children": [None]}).to_parquet(
        tmp_path / "steps.parquet"
    )
    with pytest.raises(ValueError, match="are chains"):
        node_acceptance(tmp_path)
    with pytest.raises(ValueError, match=r"holds no steps\.parquet"):
        node_acceptance(tmp_path / "nowhere")
