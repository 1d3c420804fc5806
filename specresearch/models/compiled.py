"""Passes over few tokens as compiled graphs, for models so small that the host sets their speed.

A graph runs on the first slot alone or on all slots, those not in the batch included, into columns nobody reads; short
chains are padded to one of a few lengths. So shapes depend only on the longest context, in steps of `WIDTH_STEP` columns,
which the graph takes as dynamic.
"""

import bisect
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.models.attention import AttentionPlan, GivenBiases, committed_positions
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView
from specresearch.models.kv_cache import Region
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

    def _run(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        position_ids: Int[Tensor, "S N"],
        flat_index: Int[Tensor, " SN"],
        biases: dict[int | None, Tensor],
    ) -> Float[Tensor, "S N V"]:
        num_slots, num_nodes = token_ids.shape
        plan = GivenBiases(biases)
        view.region = Region(tuple(range(num_slots)), (0,) * num_slots, num_nodes, plan.width, None, flat_index)
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
        store, wanted = view.store, token_ids.shape[1]
        num_nodes = self.chain_lengths[bisect.bisect_left(self.chain_lengths, wanted)]
        num_slots = 1 if tuple(slots) == (0,) else store.num_slots
        topology = Topology.chain(num_nodes, store.device)
        starts = tuple(min(length, store.num_columns - num_nodes) for length in lengths[:num_slots])
        width = -(-(max(starts) + num_nodes) // WIDTH_STEP) * WIDTH_STEP
        plan = AttentionPlan(starts, topology, min(width, store.num_columns), self.adapter.model.dtype, store.device)
        shape = (num_slots, 1, num_nodes, plan.width)
        windows = {None, *self.adapter.layer_windows}
        biases = {w: plan.full_bias(w).expand(shape) for w in windows}
        nodes = torch.arange(num_nodes, device=store.device)
        begin = upload(starts, store.device)[:, None]
        first_column = torch.arange(num_slots, device=store.device)[:, None] * store.num_columns
        flat_index = (first_column + begin + nodes).flatten()
        positions = committed_positions(starts, topology, store.device).clamp(max=max_position)
        token_ids = F.pad(token_ids, (0, num_nodes - wanted))
        everywhere = tuple(slots) == tuple(range(num_slots))
        if not everywhere:
            rows = upload(slots, store.device)
            token_ids = token_ids.new_zeros((num_slots, num_nodes)).index_copy_(0, rows, token_ids)
        for bias in biases.values():
            torch._dynamo.maybe_mark_dynamic(bias, 3)
        logits = self._graph(view, token_ids, positions, flat_index, biases)[:, :wanted]
        return logits if everywhere else logits.index_select(0, rows)
