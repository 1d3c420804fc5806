"""Passes over a few nodes of a few rows as graphs: which sizes there are, and what pads them.

A row of padding writes to columns at the end of the last slot that no request ever reaches. What a
pass needs of the host, where slots begin and how long they are, is uploaded outside of the graph;
positions, masks and columns follow from it inside.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from specresearch.models.attention_plan import GivenBiases, tree_bias
from specresearch.models.compiled_layers import CompiledLayers
from specresearch.models.graphs import GraphInput, Graphs, Tensors
from specresearch.models.kv_cache import Region
from specresearch.models.two_part import TwoPartPlan
from specresearch.proposal import Topology, upload

if TYPE_CHECKING:
    from specresearch.models.slot_model import SlotModel

Plan = TwoPartPlan | GivenBiases
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
NODES = (1, 2, 4, 8, 16, 32, 64, 128)
SHORTEST_WIDTH = 256
PENDING = 16  # tokens that a chain of drafts may first append
MOST_APPENDED = 1024  # tokens, padding included; in more, computing hides the launches


@dataclass(frozen=True)
class PaddedPass:
    """A pass as its graph sees it: several passes share a graph.

    Attributes:
        rows: B, padding included.
        num_nodes: N of the tree, padding included.
        first: Nodes that earlier passes have written.
        width: Upper bound of the columns that a node sees.
        is_chain: The tree is a chain.
        max_depth: Upper bound of the depth of a node.
    """

    rows: int
    num_nodes: int
    first: int
    width: int
    is_chain: bool
    max_depth: int


class PassGraphs:
    """The graphs of one model's passes.

    Args:
        compile: Compile the model's layers before passes are captured.

    Attributes:
        sizes: The numbers of nodes that passes are padded to.
    """

    def __init__(self, model: "SlotModel", *, compile: bool = False) -> None:
        self.model = model
        self.compile = compile
        self.graphs = Graphs(
            model.device, CompiledLayers(model.module).running if compile else nullcontext
        )
        self.sizes = sorted({1, 2, PENDING})

    def add_sizes(self, *num_nodes: int) -> int:
        """Expect trees of up to these sizes; return the columns that a slot needs beside tokens.

        They are for the largest tree, and for rows of padding.
        """
        largest = max(*num_nodes, self.sizes[-1])
        between = [size for size in NODES if size < largest]
        self.sizes = sorted({*self.sizes, *between, *num_nodes})
        return 2 * self.sizes[-1]

    def fit(
        self, slots: Sequence[int], topology: Topology, first: int = 0, behind: int = 0
    ) -> PaddedPass | None:
        """Return how a pass is padded; None if it has no graph.

        Args:
            behind: Committed tokens that the tree begins before the end of each slot.
        """
        model = self.model
        limit = model.cache.num_columns - self.sizes[-1]  # where rows of padding write
        rows = at_least(len(slots), ROWS)
        num_nodes = at_least(topology.num_nodes, self.sizes)
        if rows is None or num_nodes is None:
            return None
        max_depth = num_nodes - 1
        if first:  # the levels of a tree come in the same sizes again and again
            num_nodes, max_depth = topology.num_nodes, topology.max_depth
        end = max([model.lengths[slot] for slot in slots]) - behind + num_nodes
        if end > limit or model.lengths[-1] > limit:
            return None
        return PaddedPass(
            rows=min(rows, max(model.cache.num_slots, len(slots))),
            num_nodes=num_nodes,
            first=first,
            width=self._width(end),
            is_chain=topology.is_chain,
            max_depth=max_depth,
        )

    def fit_append(self, slots: Sequence[int], topology: Topology) -> PaddedPass | None:
        """Return how a chain longer than any tree is padded, such as a prompt; None as in `fit`.

        Rows of padding would need more columns than there are beside tokens, so there are none.
        """
        rows, num_nodes = len(slots), at_least(topology.num_nodes, NODES)
        if not topology.is_chain or num_nodes is None or rows not in ROWS:
            return None
        end = max([self.model.lengths[slot] for slot in slots]) + num_nodes
        if rows * num_nodes > MOST_APPENDED or end > self.model.cache.num_columns:
            return None
        return PaddedPass(
            rows=rows,
            num_nodes=num_nodes,
            first=0,
            width=self._width(end),
            is_chain=True,
            max_depth=num_nodes - 1,
        )

    def _width(self, end: int) -> int:
        """Return the columns that a pass reads, of a few numbers, that hold `end`."""
        width = SHORTEST_WIDTH
        while width < end:
            width *= 2 if self.model.kernel is None else 4
        return min(width, self.model.cache.num_columns)

    def run(
        self,
        padded: PaddedPass,
        kind: Hashable,
        slots: Sequence[int],
        topology: Topology,
        body: Callable[..., Tensors],
        inputs: Sequence[Tensor],
        behind: int = 0,
    ) -> Tensors:
        """Run a pass; return the outputs [B, M, ...] of its rows and nodes.

        Args:
            kind: Names the body among those of this model.
            body: Takes plan, positions and the padded inputs.
            inputs: [B, M, ...], M new nodes.
        """
        rows, num_new = len(slots), topology.num_nodes - padded.first
        shape = (padded.rows, padded.num_nodes - padded.first)
        parts = [GraphInput.padded(part, shape) for part in inputs]
        lengths = [self.model.lengths[slot] - behind for slot in slots]
        parts.append(GraphInput(self.where(padded, slots, lengths)))
        if not padded.is_chain:
            ancestors = topology.ancestors.expand(rows, -1, -1)
            parts.append(GraphInput(ancestors, partial(_own_paths, padded, ancestors.device)))
        chain = Topology.chain(padded.num_nodes, self.model.device)
        num_inputs = len(inputs)

        def function(*buffers: Tensor) -> Tensors:
            bases, starts = buffers[num_inputs]
            tree = chain
            if not padded.is_chain:
                tree = _tree_of(padded, buffers[num_inputs + 1])
            plan, positions = self.plan(padded.width, bases, starts, tree, padded.first)
            return body(plan, positions, *buffers[:num_inputs])

        def crop(outputs: Tensors) -> Tensors:
            return tuple([output[:rows, :num_new] for output in outputs])

        return self.graphs.run((padded, kind), function, parts, crop)

    def where(
        self, padded: PaddedPass, slots: Sequence[int], lengths: Sequence[int]
    ) -> Int[Tensor, "2 B"]:
        """Upload where the rows' slots begin and how many tokens they hold.

        Rows of padding are empty, and begin at the columns left for them.
        """
        num_columns = self.model.cache.num_columns
        missing = padded.rows - len(slots)
        scratch = self.model.cache.num_slots * num_columns - self.sizes[-1]
        bases = [slot * num_columns for slot in slots] + [scratch] * missing
        return upload([bases, [*lengths, *[0] * missing]], self.model.device)

    def plan(
        self,
        width: int,
        bases: Int[Tensor, " B"],
        starts: Int[Tensor, " B"],
        topology: Topology,
        first: int = 0,
    ) -> tuple[Plan, Int[Tensor, "B N"]]:
        """Do what `SlotModel._plan_pass` does, of numbers that lie on the device."""
        model = self.model
        num_new = topology.num_nodes - first
        new = torch.arange(first, topology.num_nodes, device=starts.device)
        column = bases[:, None] + starts[:, None] + new
        gathered = None
        if model.kernel is None:
            read = bases[:, None] + torch.arange(width, device=starts.device)
            last = model.cache.num_slots * model.cache.num_columns - 1
            gathered = read.clamp(max=last)
        model.view.region = Region(
            slots=(),
            starts=(),
            num_nodes=num_new,
            width=width,
            rows=None,
            flat_index=column.flatten(),
            in_place=model.kernel is not None,
            gathered=gathered,
        )
        depth = new if topology.is_chain else topology.depth[:, first:]
        # drafts beyond the last position are never accepted, but must stay in range
        positions = (starts[:, None] + depth).clamp(max=model.max_len - 1)
        if model.kernel is not None:
            plan = TwoPartPlan(model.kernel, bases, starts, topology, width, first)
            return plan, positions
        biases: dict[int | None, Tensor] = {}
        for window in {None, *model.windows}:
            biases[window] = tree_bias(starts, topology, width, model.dtype, first, window)
        return GivenBiases(biases), positions


def at_least(number: int, sizes: Sequence[int]) -> int | None:
    """Return the first size that is no smaller than the number; None if there is none."""
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None


def _own_paths(padded: PaddedPass, device: torch.device) -> Bool[Tensor, "B N N"]:
    """Return the ancestors of padding, which sees nothing but itself."""
    itself = torch.eye(padded.num_nodes, dtype=torch.bool, device=device)
    return itself.expand(padded.rows, -1, -1)


def _tree_of(padded: PaddedPass, ancestors: Bool[Tensor, "B N N"]) -> Topology:
    """Return a tree of which a pass may ask the ancestors and depths alone."""
    unknown = ancestors.new_zeros(ancestors.shape[:2], dtype=torch.long)
    tree = Topology(unknown, max_depth=padded.max_depth, max_children=padded.num_nodes)
    tree.__dict__["ancestors"] = ancestors
    return tree
