"""Passes over few tokens as compiled graphs, for models so small that the host sets their speed.

A graph runs on the first slot alone or on all slots, those not in the batch included, into columns nobody reads; short
chains are padded to one of a few lengths. So shapes depend only on the longest context, in steps of `WIDTH_STEP` columns,
which the graph takes as dynamic.
"""

import bisect
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from specresearch.models.attention import AttentionPlan, GivenBiases, committed_positions
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView
from specresearch.models.kv_cache import Region, SlotCache
from specresearch.proposal import Topology, upload

WIDTH_STEP = 256
RECOMPILE_LIMIT = 256


class CompiledForward:
    """The adapter's forward pass over chains, one graph for each of `chain_lengths`.

    chain_lengths: sorted; each is compiled on first use (tens of seconds on a slow CPU).
    """

    def __init__(self, adapter: HFAdapter, mode: str = "default") -> None:
        if not adapter.uses_slot_attention:
            raise ValueError("compile=true needs attention=slot and a model that accepts it; set compile=false")
        self.adapter = adapter
        self.chain_lengths: list[int] = []
        # the limit counts the graphs of all models together
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        self._graph: Callable[..., Tensor] = torch.compile(self._run, fullgraph=True, mode=mode)
        self._greedy_graph: Callable[..., tuple[Tensor, Tensor]] = torch.compile(
            self._run_greedily, fullgraph=True, mode=mode
        )

    def _run(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        position_ids: Int[Tensor, "S N"],
        flat_index: Int[Tensor, "S N"],
        biases: dict[int | None, Tensor],
    ) -> Float[Tensor, "S N V"]:
        num_slots, num_nodes = token_ids.shape
        plan = GivenBiases(biases)
        view.region = Region(
            tuple(range(num_slots)), (0,) * num_slots, num_nodes, plan.width, None, flat_index.flatten()
        )
        return self.adapter.call(token_ids, position_ids, view, plan)

    def add_chain_length(self, num_nodes: int) -> None:
        """From now on, chains of up to `num_nodes` tokens run compiled."""
        if num_nodes not in self.chain_lengths:
            bisect.insort(self.chain_lengths, num_nodes)

    def covers(self, topology: Topology) -> bool:
        return topology.is_chain and topology.num_nodes <= max(self.chain_lengths, default=0)

    def __call__(
        self,
        view: SlotCacheView,
        lengths: Sequence[int],
        slots: Sequence[int],
        token_ids: Int[Tensor, "B N"],
        max_position: int,
    ) -> Float[Tensor, "B N V"]:
        """Logits after each token of a chain. lengths: committed tokens of every slot, running or not."""
        wanted = token_ids.shape[1]
        num_nodes = self.chain_lengths[bisect.bisect_left(self.chain_lengths, wanted)]
        place = self._place(view.store, lengths, slots, num_nodes, max_position)
        token_ids = self._spread(view.store, slots, F.pad(token_ids, (0, num_nodes - wanted)))
        return self._gather(slots, self._graph(view, token_ids, *place)[:, :wanted])

    def continue_greedily(
        self,
        view: SlotCacheView,
        lengths: Sequence[int],
        slots: Sequence[int],
        token_ids: Int[Tensor, "B 1"],
        num_steps: int,
        num_choices: int,
        max_position: int,
    ) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K V"]]:
        """The K likeliest tokens, one after the other, and the logits that chose them, as one graph."""
        place = self._place(view.store, lengths, slots, num_steps, max_position)
        token_ids = self._spread(view.store, slots, token_ids)
        tokens, logits = self._greedy_graph(view, token_ids, *place, num_choices)
        return self._gather(slots, tokens), self._gather(slots, logits)

    def _run_greedily(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S 1"],
        position_ids: Int[Tensor, "S K"],
        flat_index: Int[Tensor, "S K"],
        biases: dict[int | None, Tensor],
        num_choices: int,
    ) -> tuple[Int[Tensor, "S K"], Float[Tensor, "S K V"]]:
        tokens, seen = [], []
        for i in range(position_ids.shape[1]):
            one = slice(i, i + 1)
            bias = {window: whole[:, :, one] for window, whole in biases.items()}
            logits = self._run(view, token_ids, position_ids[:, one], flat_index[:, one], bias)
            token_ids = logits[..., :num_choices].argmax(-1)
            tokens.append(token_ids)
            seen.append(logits)
        return torch.cat(tokens, dim=1), torch.cat(seen, dim=1)

    def _place(
        self, store: SlotCache, lengths: Sequence[int], slots: Sequence[int], num_nodes: int, max_position: int
    ) -> tuple[Int[Tensor, "S N"], Int[Tensor, "S N"], dict[int | None, Tensor]]:
        """Positions, columns of the flattened cache and masks of a chain in the first slot, or in every slot."""
        num_slots = 1 if tuple(slots) == (0,) else store.num_slots
        topology = Topology.chain(num_nodes, store.device)
        starts = tuple(min(length, store.num_columns - num_nodes) for length in lengths[:num_slots])
        width = -(-(max(starts) + num_nodes) // WIDTH_STEP) * WIDTH_STEP
        plan = AttentionPlan(starts, topology, min(width, store.num_columns), self.adapter.model.dtype, store.device)
        shape = (num_slots, 1, num_nodes, plan.width)
        windows = {None, *self.adapter.layer_windows}
        biases = {w: plan.full_bias(w).expand(shape) for w in windows}
        for bias in biases.values():
            torch._dynamo.maybe_mark_dynamic(bias, 3)
        positions = committed_positions(starts, topology, store.device)
        first_column = torch.arange(num_slots, device=store.device)[:, None] * store.num_columns
        return positions.clamp(max=max_position), first_column + positions, biases

    def _spread(self, store: SlotCache, slots: Sequence[int], token_ids: Int[Tensor, "B N"]) -> Int[Tensor, "S N"]:
        """Rows of the batch in the rows of their slots, where the graph runs on all of them."""
        if tuple(slots) in ((0,), tuple(range(store.num_slots))):
            return token_ids
        rows = upload(slots, store.device)
        return token_ids.new_zeros((store.num_slots, token_ids.shape[1])).index_copy_(0, rows, token_ids)

    def _gather(self, slots: Sequence[int], result: Shaped[Tensor, "S ..."]) -> Shaped[Tensor, "B ..."]:
        if tuple(slots) == tuple(range(result.shape[0])):
            return result
        return result.index_select(0, upload(slots, result.device))
