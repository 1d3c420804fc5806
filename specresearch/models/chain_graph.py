"""A whole chain of drafts as one graph: append what is new, then one token after another."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.models.causal_lm import CausalLM
from specresearch.models.graphs import GraphInput, Tensors
from specresearch.models.pass_graphs import PENDING, PaddedPass, PassGraphs, at_least
from specresearch.proposal import Topology, upload


@dataclass(frozen=True)
class ChainChoice:
    """How the next token of a chain is chosen. It must never wait for the device.

    Attributes:
        kind: Names this way among those of one model.
        choose: Takes the number of a draft, the logits [B, 1, V] and what is given; returns the
            draft [B, 1], and [B, 1, ...] of what else is to be known of it.
        given: Returns further inputs of the graph for a number of rows, padding included.
        to_fed: Returns the model's ids of drafts.
    """

    kind: Hashable
    choose: Callable[..., Tensors]
    given: Callable[[int], Sequence[GraphInput]]
    to_fed: Callable[[Tensor], Tensor]


@torch.inference_mode()
def draft_chain(
    lm: CausalLM,
    slots: Sequence[int],
    tokens: Sequence[Sequence[int]],
    num_steps: int,
    choice: ChainChoice,
) -> Tensors | None:
    """Append tokens to every row, and a chain drafted after them but for its last token.

    Args:
        tokens: New tokens of each row, at least one.
        num_steps: K, the tokens to draft.

    Returns:
        The drafts [B, K], and [B, K, ...] of what else the choice returns; None if there is no
        graph for it, and then nothing is appended.
    """
    passes = lm.passes
    padded = None if passes is None else _fit(passes, slots, tokens, num_steps)
    if passes is None or padded is None:
        return None
    inputs = _inputs(passes, padded, slots, tokens)
    pending, one = (Topology.chain(num, lm.device) for num in (padded.num_nodes, 1))

    def function(token_ids: Tensor, where: Tensor, *given: Tensor) -> Tensors:
        bases, starts, last = where
        (states,) = lm.states(token_ids, *passes.plan(padded.width, bases, starts, pending))
        states = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2]))
        drafts: list[Tensors] = []
        for i in range(num_steps):
            drafts.append(choice.choose(i, lm.readout(states), *given))
            if i + 1 < num_steps:
                plan = passes.plan(padded.width, bases, starts + last + (1 + i), one)
                (states,) = lm.states(choice.to_fed(drafts[-1][0]), *plan)
        return tuple([torch.cat(parts, dim=1) for parts in zip(*drafts, strict=True)])

    drafted = passes.graphs.run(
        (padded, choice.kind, num_steps),
        function,
        [*inputs, *choice.given(padded.rows)],
        lambda outputs: tuple([output[: len(slots)] for output in outputs]),
    )
    for slot, row in zip(slots, tokens, strict=True):
        lm.lengths[slot] += len(row) + num_steps - 1
    return drafted


def _fit(
    passes: PassGraphs, slots: Sequence[int], tokens: Sequence[Sequence[int]], num_steps: int
) -> PaddedPass | None:
    """Return the pass that appends the tokens, wide enough for the drafts after them."""
    longest = max(map(len, tokens))
    num_pending = at_least(longest, (2, PENDING))
    if num_pending is None:
        return None
    num_columns = max(num_pending, longest + num_steps)
    padded = passes.fit(slots, Topology.chain(num_columns, passes.model.device))
    return None if padded is None else replace(padded, num_nodes=num_pending)


def _inputs(
    passes: PassGraphs,
    padded: PaddedPass,
    slots: Sequence[int],
    tokens: Sequence[Sequence[int]],
) -> list[GraphInput]:
    """Return the new tokens; and for each row where its slot begins, its length, and its last."""
    device = passes.model.device
    num_nodes, missing = padded.num_nodes, padded.rows - len(slots)
    token_ids = upload([[*row, *[0] * (num_nodes - len(row))] for row in tokens], device)
    where = passes.where(padded, slots, [passes.model.lengths[slot] for slot in slots])
    last: Int[Tensor, "1 B"] = upload([[len(row) - 1 for row in tokens] + [0] * missing], device)
    return [
        GraphInput.padded(token_ids, (padded.rows, num_nodes)),
        GraphInput(torch.cat([where, last])),
    ]
