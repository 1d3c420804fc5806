"""Drafting steps as one compiled graph over all slots, for models so small that the host sets their speed.

Slots that are not in the batch are computed too, into columns nobody reads, so that shapes depend only on the number of
tokens and, in steps of `WIDTH_STEP` columns, on the longest context, which the graph takes as dynamic.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.models.attention import AttentionPlan, GivenBiases, committed_positions
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView
from specresearch.models.kv_cache import Region
from specresearch.proposal import Topology, upload

WIDTH_STEP = 256
MAX_TOKENS = 2
RECOMPILE_LIMIT = 256


class CompiledForward:
    """The adapter's forward pass for one or two new tokens, each compiled on first use (tens of seconds on a slow CPU)."""

    def __init__(self, adapter: HFAdapter, mode: str = "default") -> None:
        if not adapter.uses_slot_attention:
            raise ValueError("compile=true needs attention=slot and a model that accepts it; set compile=false")
        self.adapter = adapter
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

    def __call__(
        self,
        view: SlotCacheView,
        lengths: Sequence[int],
        slots: Sequence[int],
        token_ids: Int[Tensor, "B N"],
        max_position: int,
    ) -> Float[Tensor, "B N V"]:
        """Logits after each of at most `MAX_TOKENS` tokens. lengths: committed tokens of every slot, running or not."""
        store, num_nodes = view.store, token_ids.shape[1]
        topology = Topology.chain(num_nodes, store.device)
        starts = tuple(min(length, store.num_columns - num_nodes) for length in lengths)
        width = -(-(max(starts) + num_nodes) // WIDTH_STEP) * WIDTH_STEP
        plan = AttentionPlan(starts, topology, min(width, store.num_columns), self.adapter.model.dtype, store.device)
        shape = (store.num_slots, 1, num_nodes, plan.width)
        windows = {None, *self.adapter.layer_windows}
        biases = {w: plan.full_bias(w).expand(shape) for w in windows}
        nodes = torch.arange(num_nodes, device=store.device)
        begin = upload(starts, store.device)[:, None]
        first_column = torch.arange(store.num_slots, device=store.device)[:, None] * store.num_columns
        flat_index = (first_column + begin + nodes).flatten()
        positions = committed_positions(starts, topology, store.device).clamp(max=max_position)
        everywhere = tuple(slots) == tuple(range(store.num_slots))
        if not everywhere:
            rows = upload(slots, store.device)
            token_ids = token_ids.new_zeros((store.num_slots, num_nodes)).index_copy_(0, rows, token_ids)
        for bias in biases.values():
            torch._dynamo.maybe_mark_dynamic(bias, 3)
        logits = self._graph(view, token_ids, positions, flat_index, biases)
        return logits if everywhere else logits.index_select(0, rows)
