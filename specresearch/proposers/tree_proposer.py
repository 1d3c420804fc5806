"""What proposers share whose drafter can grow chains, static and dynamic trees."""

from collections.abc import Sequence

import torch

from specresearch.proposal import DraftKind
from specresearch.proposers.base import Proposer
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.shapes import TreeShape, shapes_to_choose


class TreeProposer(Proposer):
    """Drafts in a shape that its settings name or that `auto` chooses.

    Args:
        tree: chain, static or dynamic; auto takes the faster of chain and dynamic.
        num_draft_tokens: As in `TreeShape`, like `paths`, `depth` and `top_k`; auto takes the
            fastest, with at most `depth` levels.
        sample: Draw drafts from the drafter's distribution and report it, where they are a chain
            or, with `samples_trees`, a static tree. False drafts the likeliest tokens as point
            masses, as greedy requests and dynamic trees always do.

    Attributes:
        may_sample: The setting `sample`.
        max_depth: The setting `depth`, like `top_k`.
        shape: What is drafted.
        sample: Whether drafts of this shape are sampled.
        max_fed: The most nodes in the drafter's cache while a tree of any of the shapes grows.
    """

    samples_trees: bool = False

    def __init__(
        self,
        tree: str,
        num_draft_tokens: NumDrafts | None,
        paths: Sequence[Sequence[int]] | str | None,
        depth: int,
        top_k: int,
        *,
        sample: bool,
    ) -> None:
        self.may_sample, self.max_depth, self.top_k = sample, depth, top_k
        self._bound: tuple[int, torch.device] | None = None
        self.shapes = shapes_to_choose(tree, num_draft_tokens, paths, depth, top_k)
        self.is_num_auto = num_draft_tokens == AUTO
        if self.shapes:
            shapes = list(map(self._tree_shape, self.shapes))
        else:
            num = None if num_draft_tokens == AUTO else num_draft_tokens
            shapes = [TreeShape(tree, num, paths, depth, top_k)]
        self.max_fed = max(shape.max_fed for shape in shapes)
        self._use(shapes[-1])

    @property
    def shape_now(self) -> DraftShape:
        depth = self.shape.depth if self.shape.name == "dynamic" else None
        return DraftShape(self.num_draft_tokens, self.shape.name, depth)

    def draft_as(self, shape: DraftShape) -> None:
        super().draft_as(shape)
        if shape.num_draft_tokens:
            self._use(self._tree_shape(shape))

    def _tree_shape(self, shape: DraftShape) -> TreeShape:
        assert shape.tree is not None
        num = None if shape.paths else shape.num_draft_tokens
        depth = shape.depth or self.max_depth
        if num is not None and shape.tree == "dynamic":
            num = min(num, self.top_k + (depth - 1) * self.top_k**2)  # there are no more
        return TreeShape(shape.tree, num, shape.paths, depth, self.top_k)

    def _use(self, shape: TreeShape) -> None:
        self.shape = shape
        self.num_draft_tokens = shape.num_draft_tokens
        is_chain = shape.name == "chain"
        is_sampled_tree = self.samples_trees and shape.name == "static"
        self.sample = self.may_sample and (is_chain or is_sampled_tree)
        self.kind = DraftKind(
            trees=not is_chain,
            sampled=self.sample,
            scored=True,
            chain_setting="proposer.tree=chain",
            max_depth=shape.max_depth,
        )
        if self._bound is not None:
            self.shape.bind(*self._bound)

    def bind_shape(self, vocab_size: int, device: torch.device) -> None:
        """Move the shape to a device, and those that are chosen later."""
        self._bound = (vocab_size, device)
        self.shape.bind(vocab_size, device)
