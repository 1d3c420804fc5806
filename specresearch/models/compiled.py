"""Passes over few tokens as compiled graphs, for models so small that the host sets their speed.

A graph runs on the first slot alone or on all slots, those not in the batch included, into columns nobody reads; short
chains are padded to one of a few lengths. So shapes depend only on the longest context, in steps of `WIDTH_STEP` columns,
which the graph takes as dynamic.
"""

import bisect
from collections.abc import Callable, Sequence
from functools import partial

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
# positions [S, N], columns of the flattened cache [S, N], and masks [S, 1, N, width] by attention window
_Place = tuple[Tensor, Tensor, dict[int | None, Tensor]]


class CompiledForward:
    """The adapter's forward pass over chains, one graph for each of `chain_lengths`.

    chain_lengths: sorted; each is compiled on first use (tens of seconds on a slow CPU).
    """

    def __init__(self, adapter: HFAdapter) -> None:
        if not adapter.uses_slot_attention:
            raise ValueError("compile=true needs attention=slot and a model that accepts it; set compile=false")
        self.adapter = adapter
        self.chain_lengths: list[int] = []
        # the limit counts the graphs of all models together
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        # the host is what counts: graphs of a CPU are called from C++
        compiled = partial(torch.compile, fullgraph=True, options={"cpp_wrapper": adapter.model.device.type == "cpu"})
        self._graph: Callable[..., Tensor] = compiled(self._run)
        self._greedy_graph: Callable[..., tuple[Tensor, Tensor]] = compiled(self._run_greedily)

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
        place = self._place(view.store, lengths, num_nodes, slots=slots, max_position=max_position, surplus=num_nodes)
        token_ids = self._spread(view.store, slots, F.pad(token_ids, (0, num_nodes - wanted)))
        return self._gather(slots, self._graph(view, token_ids, *place)[:, :wanted])

    def draft_greedily(
        self,
        view: SlotCacheView,
        lengths: Sequence[int],
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_steps: int,
        num_choices: int,
        max_position: int,
    ) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K V"]]:
        """The K likeliest tokens behind each row's new ones, and the logits that chose them, as one graph.

        tokens: at least one a row, and no more than a chain that is covered.
        """
        store, longest = view.store, max(map(len, tokens))
        num_nodes = self.chain_lengths[bisect.bisect_left(self.chain_lengths, longest)]
        ids = upload([[*row, *[0] * (num_nodes - len(row))] for row in tokens], store.device)
        last, known = [0] * store.num_slots, list(lengths)
        for slot, row in zip(slots, tokens, strict=True):
            last[slot] = len(row) - 1
            known[slot] += len(row)
        place = partial(self._place, store, slots=slots, max_position=max_position, surplus=max(num_nodes, num_steps))
        token_ids = self._spread(store, slots, ids)
        ends = upload(last[: len(token_ids)], store.device, torch.long)
        chosen, logits = self._greedy_graph(
            view, token_ids, ends, place(lengths, num_nodes), place(known, num_steps - 1), num_choices
        )
        return self._gather(slots, chosen), self._gather(slots, logits)

    def _run_greedily(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        ends: Int[Tensor, " S"],
        read: _Place,
        drafted: _Place,
        num_choices: int,
    ) -> tuple[Int[Tensor, "S K"], Float[Tensor, "S K V"]]:
        """ends: the last new token of each row."""
        logits = self._run(view, token_ids, *read)
        logits = logits[torch.arange(len(ends), device=ends.device), ends][:, None]
        position_ids, flat_index, biases = drafted
        tokens, seen = [logits[..., :num_choices].argmax(-1)], [logits]
        for i in range(position_ids.shape[1]):
            one = slice(i, i + 1)
            bias = {window: whole[:, :, one] for window, whole in biases.items()}
            seen.append(self._run(view, tokens[-1], position_ids[:, one], flat_index[:, one], bias))
            tokens.append(seen[-1][..., :num_choices].argmax(-1))
        return torch.cat(tokens, dim=1), torch.cat(seen, dim=1)

    def _place(
        self,
        store: SlotCache,
        lengths: Sequence[int],
        num_nodes: int,
        *,
        slots: Sequence[int],
        max_position: int,
        surplus: int,
    ) -> _Place:
        """Where a chain goes, in the first slot or in every slot. surplus: columns that a pass may need behind the longest."""
        num_slots = 1 if tuple(slots) == (0,) else store.num_slots
        topology = Topology.chain(num_nodes, store.device)
        starts = tuple(min(length, store.num_columns - num_nodes) for length in lengths[:num_slots])
        width = -(-(max(starts) + surplus) // WIDTH_STEP) * WIDTH_STEP
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
