"""The shapes of draft trees as settings."""

from typing import Any

import pytest
import torch

from specresearch.proposers.shapes import TreeShape


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "bush"}, "choose one of chain, static, dynamic"),
        ({"name": "dynamic", "depth": 0}, "at least 1"),
        ({"name": "dynamic", "depth": 2, "top_k": 2}, "has 6 nodes to choose from"),
        ({"name": "chain", "paths": [[0]]}, "is for proposer.tree=static"),
        ({"name": "static", "paths": "/nowhere.json"}, "there is no such file"),
    ],
)
def test_bad_settings_are_rejected(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TreeShape(num_draft_tokens=10, **settings)


def test_a_rank_beyond_the_vocabulary_is_rejected() -> None:
    with pytest.raises(ValueError, match="rank 9 and the vocabulary 7"):
        TreeShape("static", 1, [[9]]).bind(7, torch.device("cpu"))


@pytest.mark.parametrize(
    ("paths", "name"), [([[0], [0, 0], [0, 0, 0]], "chain"), ([[0], [0, 0], [1]], "static")]
)
def test_a_tree_without_branches_is_a_chain(paths: list[list[int]], name: str) -> None:
    shape = TreeShape("static", None, paths)
    assert (shape.name, shape.num_draft_tokens) == (name, 3)
