"""The shapes of draft trees as settings of a proposer."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

from specresearch.proposers.base import check_num_draft_tokens
from specresearch.proposers.draft_shape import AUTO, LONGEST_CHAIN, DraftShape, NumDrafts
from specresearch.proposers.sequoia import TYPICAL_RANK_ACCEPTANCE, best_tree
from specresearch.proposers.static_tree import RankPath, StaticTree

DEFAULT_SIZES = {"chain": 5, "static": 24, "dynamic": 60}


class TreeShape:
    """The shape of a proposer's drafts.

    Args:
        name: chain, static (fixed paths of child ranks) or dynamic (the most confident nodes of
            every level). A static tree without branches becomes a chain.
        num_draft_tokens: Length of the chain, or nodes of the tree. None uses `DEFAULT_SIZES`,
            or all nodes of a smaller dynamic tree.
        paths: The paths of a static tree, as a list or as a JSON file with a list under "paths".
            None uses the best tree of `num_draft_tokens` nodes, at most `depth` deep, for a
            typical acceptance by rank.
        depth: Levels of a dynamic tree.
        top_k: Nodes expanded in each level of a dynamic tree.

    Attributes:
        static: The tree, unless it is dynamic.

    Raises:
        ValueError: For settings that describe no tree.
    """

    def __init__(
        self,
        name: str,
        num_draft_tokens: int | None = None,
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
    ) -> None:
        if name not in DEFAULT_SIZES:
            raise ValueError(
                f"proposer.tree={name!r} is unknown; choose one of {', '.join(DEFAULT_SIZES)}"
            )
        if depth < 1 or top_k < 1:
            raise ValueError(
                f"proposer.depth={depth}, proposer.top_k={top_k}: both must be at least 1"
            )
        if paths is not None and name != "static":
            raise ValueError(f"proposer.paths is for proposer.tree=static, not {name}")
        self.name, self.depth, self.top_k = name, depth, top_k
        size = DEFAULT_SIZES[name]
        if num_draft_tokens is not None:
            size = check_num_draft_tokens(num_draft_tokens)
        self.static: StaticTree | None = None
        if name == "chain":
            self.static = StaticTree.from_paths([(0,) * length for length in range(1, size + 1)])
        elif name == "static":
            self.static = _static_tree(paths, size, depth)
            size = self.static.num_drafts
            if max(self.static.widths) == 1:  # chains draft faster than trees without branches
                self.name = "chain"
        else:
            reachable = top_k + (depth - 1) * top_k**2
            if num_draft_tokens is not None and size > reachable:
                raise ValueError(
                    f"proposer.num_draft_tokens={size}: a dynamic tree with depth={depth} and "
                    f"top_k={top_k} has {reachable} nodes to choose from; raise depth or top_k"
                )
            size = min(size, reachable)
        self.num_draft_tokens = size

    @property
    def max_depth(self) -> int:
        """The longest path."""
        return self.depth if self.static is None else self.static.depth

    @property
    def max_fed(self) -> int:
        """The most nodes in the drafter's cache while a tree grows, root included."""
        if self.name == "dynamic":
            return 1 + self.top_k * (self.depth - 1)
        return self.num_draft_tokens

    def bind(self, vocab_size: int, device: torch.device) -> None:
        """Move the tree to a device; raises ValueError for a rank beyond the vocabulary."""
        if self.static is None:
            return
        width = max(self.static.widths)
        if width > vocab_size:
            raise ValueError(
                f"a path has rank {width - 1} and the vocabulary {vocab_size} tokens; "
                "lower proposer.paths"
            )
        self.static = self.static.to(device)


def shapes_to_choose(
    tree: str,
    num_draft_tokens: NumDrafts | None,
    paths: Sequence[Sequence[int]] | str | None,
    depth: int,
    top_k: int,
) -> tuple[DraftShape, ...]:
    """Return the largest shape of each kind that these settings leave to `auto`.

    Arguments are those of `TreeShape`, and `auto`. Chains and dynamic trees cover what a drafter of
    both kinds can do: a chain may be sampled and is drafted fastest, and of all trees the dynamic
    one holds the likeliest nodes.
    """
    if paths is not None or AUTO not in (tree, num_draft_tokens):
        return ()
    shapes = []
    for name in ("chain", "dynamic") if tree == AUTO else (tree,):
        num = None if num_draft_tokens == AUTO else num_draft_tokens
        if name == "chain" and num_draft_tokens == AUTO:
            num = LONGEST_CHAIN
        shape = TreeShape(name, num, None, depth, top_k)
        levels = shape.depth if name == "dynamic" else None
        shapes.append(DraftShape(shape.num_draft_tokens, name, levels))
    return tuple(shapes)


def _static_tree(
    paths: Sequence[Sequence[int]] | str | None, num_draft_tokens: int, depth: int
) -> StaticTree:
    if paths is None:
        paths = best_tree(TYPICAL_RANK_ACCEPTANCE, num_draft_tokens, depth).paths
    elif isinstance(paths, str):
        paths = read_paths(paths)
    return StaticTree.from_paths(paths)


def read_paths(file: str) -> list[list[int]]:
    """Read the paths in a JSON file, such as `python -m specresearch.tree` writes.

    Raises:
        ValueError: If the file cannot be read or holds no paths.
    """
    if not Path(file).is_file():
        raise ValueError(
            f"proposer.paths={file}: there is no such file; write one with python -m "
            "specresearch.tree"
        )
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        paths = content["paths"] if isinstance(content, dict) else content
        return [list(map(int, path)) for path in paths]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"proposer.paths={file}: no list of paths under 'paths' "
            f"({type(error).__name__}: {error}); write one with python -m specresearch.tree"
        ) from error


def small_paths(vocab_size: int) -> list[RankPath]:
    """Return a static tree of three levels for a target with a tiny vocabulary.

    It has more than 16 nodes if there are three tokens or more.
    """
    ranks = range(min(3, vocab_size))
    paths = []
    for depth in (1, 2, 3):
        paths += [path for path in product(ranks, repeat=depth) if sum(path) <= 3]
    return paths
