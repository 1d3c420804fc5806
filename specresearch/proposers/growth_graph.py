"""The growth of a whole draft tree as one graph, for drafters with a slot cache."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from specresearch.models.graphs import GraphInput, Tensors
from specresearch.models.pass_graphs import PassGraphs, Plan
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import Topology


@runtime_checkable
class TreeDrafter(Protocol):
    """Predicts what follows the nodes of a growing tree.

    The root is never passed: the logits after it are known when growth begins.
    """

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M D"]:
        """Return the logits after M nodes, from node `first` on, in its own vocabulary.

        The nodes before them were passed by earlier calls.
        """
        ...


PlanLevel = Callable[[Topology, int], tuple[Plan, Int[Tensor, "B M"]]]


@dataclass(frozen=True)
class GrowthGraph:
    """Grows the trees of a batch by a graph.

    Args:
        make_drafter: Returns the drafter inside of the graph. It takes a function that plans the
            pass over a tree's nodes from one on, and `states`.
        states: What the drafter begins with, by row.
        max_fed: The most nodes of a tree in the drafter's cache.
        behind: Committed tokens that the tree begins before the end of each slot.
        vocabulary: What the drafter's ids depend on beside the model.
    """

    passes: PassGraphs
    slots: Sequence[int]
    make_drafter: Callable[..., TreeDrafter]
    states: Sequence[Float[Tensor, "B n H"]]
    max_fed: int
    behind: int = 0
    vocabulary: Hashable = None

    @staticmethod
    def of(
        model: SlotModel,
        slots: Sequence[int],
        make_drafter: Callable[..., TreeDrafter],
        states: Sequence[Float[Tensor, "B n H"]],
        *,
        max_fed: int,
        behind: int = 0,
        vocabulary: Hashable = None,
    ) -> "GrowthGraph | None":
        """Return None if the model's passes have no graphs."""
        if model.passes is None:
            return None
        return GrowthGraph(model.passes, slots, make_drafter, states, max_fed, behind, vocabulary)

    def run(
        self,
        kind: Hashable,
        grow: Callable[..., Tensors],
        inputs: Callable[[int], Sequence[GraphInput]],
    ) -> Tensors | None:
        """Return what `grow` makes of a drafter and the inputs; None if there is no graph for it.

        Args:
            kind: Names `grow` and all that it depends on beside its inputs.
            inputs: Returns them for a number of rows, padding included.
        """
        passes, device = self.passes, self.passes.model.device
        padded = passes.fit(self.slots, Topology.chain(self.max_fed, device), behind=self.behind)
        if padded is None:
            return None
        lengths = [passes.model.lengths[slot] - self.behind for slot in self.slots]
        parts = [GraphInput(passes.where(padded, self.slots, lengths))]
        parts += [GraphInput.padded(state, (padded.rows,)) for state in self.states]
        num_states, make_drafter, width = len(self.states), self.make_drafter, padded.width

        def function(where: Tensor, *buffers: Tensor) -> Tensors:
            bases, starts = where

            def plan(topology: Topology, first: int) -> tuple[Plan, Tensor]:
                return passes.plan(width, bases, starts, topology, first)

            drafter = make_drafter(plan, *buffers[:num_states])
            return grow(drafter, *buffers[num_states:])

        shapes = tuple([tuple(state.shape[1:]) for state in self.states])
        rows = len(self.slots)
        return passes.graphs.run(
            (padded, kind, shapes, self.vocabulary),
            function,
            [*parts, *inputs(padded.rows)],
            lambda outputs: tuple([output[:rows] for output in outputs]),
        )
