"""Passes over few tokens as compiled graphs, for models so small that the host sets their speed.

A graph runs on the first slot alone or on all slots; slots outside the batch write to columns that
nobody reads. Short chains are padded to one of a few lengths. So shapes depend only on the longest
context, in steps of `WIDTH_STEP` columns, which the graph takes as dynamic. Positions and masks are
computed in the graph.
"""

import bisect
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from specresearch.models.attention_plan import MASKED, GivenBiases
from specresearch.models.compiled_layers import RECOMPILE_LIMIT
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView
from specresearch.models.kv_cache import Region, SlotCache
from specresearch.proposal import Topology, upload

WIDTH_STEP = 256
# tokens that drafting may prefill first: the larger number after steps without a draft
PREFILL_LENGTHS = (2, 16)


class CompiledForward:
    """The adapter's forward pass over chains, with one graph per chain length.

    The first pass of a kind compiles every graph that later ones may need (tens of seconds each on
    a slow CPU), so that none compiles in the middle of a measurement.

    Attributes:
        chain_lengths: Chain lengths that have a graph, sorted.
        spare_columns: Columns that the cache needs behind the last token, for padding.
    """

    spare_columns = PREFILL_LENGTHS[-1]

    def __init__(self, adapter: HFAdapter) -> None:
        if not adapter.uses_slot_attention:
            raise ValueError(
                "compile=true needs attention=slot and a model that accepts it; set compile=false"
            )
        self.adapter = adapter
        self.chain_lengths: list[int] = []
        config = torch._dynamo.config
        # the limit counts the graphs of all models together
        config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
        # the host is the bottleneck: graphs of a CPU are called from C++
        is_cpu = adapter.model.device.type == "cpu"
        compiled = partial(torch.compile, fullgraph=True, options={"cpp_wrapper": is_cpu})
        self._graph: Callable[..., Tensor] = compiled(self._run)
        self._greedy_graph: Callable[..., tuple[Tensor, Tensor]] = compiled(self._run_greedily)
        self._compiled_kinds: set[tuple[object, ...]] = set()

    def _run(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        starts: Int[Tensor, " S"],
        columns: Int[Tensor, " L"],
        max_position: int,
        logit_rows: Int[Tensor, " R"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return logits [S, N, V], or [1, R, V] for chosen rows of the flattened batch.

        Args:
            starts: Column where each slot's chain begins.
            columns: 0 to L - 1, the columns to read.
        """
        num_slots, num_nodes = token_ids.shape
        device = starts.device
        positions = starts[:, None] + torch.arange(num_nodes, device=device)  # columns, too
        first_column = torch.arange(num_slots, device=device)[:, None] * view.store.num_columns
        distance = positions[:, None, :, None] - columns
        biases: dict[int | None, Tensor] = {}
        for window in {None, *self.adapter.layer_windows}:
            seen = distance >= 0
            if window is not None:
                seen = seen & (distance < window)
            biases[window] = torch.where(seen, 0.0, MASKED).to(self.adapter.model.dtype)
        view.region = Region(
            slots=tuple(range(num_slots)),
            starts=(0,) * num_slots,
            num_nodes=num_nodes,
            width=columns.shape[0],
            rows=None,
            flat_index=(first_column + positions).flatten(),
        )
        positions = positions.clamp(max=max_position)
        return self.adapter.call(token_ids, positions, view, GivenBiases(biases), logit_rows)

    def add_chain_length(self, num_nodes: int) -> None:
        """From now on, run chains of up to `num_nodes` tokens compiled."""
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
        """Return the logits after each token of a chain.

        Args:
            lengths: Committed tokens of every slot, in the batch or not.
        """
        store, num_tokens = view.store, token_ids.shape[1]
        num_nodes = self.chain_lengths[bisect.bisect_left(self.chain_lengths, num_tokens)]

        def run(slots: Sequence[int], token_ids: Tensor) -> Tensor:
            num_nodes = token_ids.shape[1]
            starts = _starts(store, slots, lengths, num_nodes)
            return self._graph(
                view,
                _scatter(store, slots, token_ids),
                upload(starts, store.device),
                _columns(store, max(starts) + num_nodes),
                max_position,
            )

        self._compile(("chain", *self.chain_lengths), store, self.chain_lengths, run)
        logits = run(slots, F.pad(token_ids, (0, num_nodes - num_tokens)))
        return _gather(slots, logits[:, :num_tokens])

    def _compile(
        self,
        kind: tuple[object, ...],
        store: SlotCache,
        sizes: Sequence[int],
        run: Callable[..., object],
    ) -> None:
        """Run a kind of pass once in all sizes, on the first slot and on all slots.

        What this writes lies behind the committed tokens, where the next pass writes.
        """
        if (store.num_slots, *kind) in self._compiled_kinds:
            return
        self._compiled_kinds.add((store.num_slots, *kind))
        for slots in {(0,), tuple(range(store.num_slots))}:
            for size in sizes:
                run(slots, torch.zeros((len(slots), size), dtype=torch.long, device=store.device))

    def draft_greedily(
        self,
        view: SlotCacheView,
        lengths: Sequence[int],
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        num_steps: int,
        num_choices: int,
        max_position: int,
    ) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K V"]]:
        """Return the K likeliest tokens after each row's new ones, and the logits that chose them.

        Args:
            tokens: New tokens of each row, 1 to `spare_columns`.
            num_steps: K.
            num_choices: Only the first `num_choices` ids are drafted.
        """
        store = view.store
        num_nodes = PREFILL_LENGTHS[bisect.bisect_left(PREFILL_LENGTHS, max(map(len, tokens)))]
        last, draft_starts = [0] * store.num_slots, list(lengths)
        for slot, row in zip(slots, tokens, strict=True):
            last[slot] = len(row) - 1
            draft_starts[slot] += len(row)

        def run(slots: Sequence[int], token_ids: Tensor) -> tuple[Tensor, Tensor]:
            num_nodes = token_ids.shape[1]
            starts = _starts(store, slots, lengths, num_nodes)
            drafted = _starts(store, slots, draft_starts, num_steps - 1)
            ends = [min(index, num_nodes - 1) for index in last[: len(starts)]]
            return self._greedy_graph(
                view,
                _scatter(store, slots, token_ids),
                upload([starts, ends, drafted], store.device),
                _columns(store, max(*starts, *drafted) + max(num_nodes, num_steps)),
                num_steps=num_steps,
                num_choices=num_choices,
                max_position=max_position,
            )

        self._compile(("greedy", num_steps, num_choices), store, PREFILL_LENGTHS, run)
        padded = [[*row, *[0] * (num_nodes - len(row))] for row in tokens]
        chosen, logits = run(slots, upload(padded, store.device))
        return _gather(slots, chosen), _gather(slots, logits)

    def _run_greedily(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        chains: Int[Tensor, "3 S"],
        columns: Int[Tensor, " L"],
        *,
        num_steps: int,
        num_choices: int,
        max_position: int,
    ) -> tuple[Int[Tensor, "S K"], Float[Tensor, "S K V"]]:
        """Prefill, then draft token by token.

        Args:
            chains: Column of each slot's first token, index of its last one, column of its drafts.
        """
        num_slots, num_nodes = token_ids.shape
        starts, last, drafted = chains
        ends = torch.arange(num_slots, device=last.device) * num_nodes + last
        logits = self._run(view, token_ids, starts, columns, max_position, logit_rows=ends)
        logits = logits.transpose(0, 1)
        all_logits = [logits]
        tokens = [logits[..., :num_choices].argmax(-1)]
        for i in range(num_steps - 1):
            logits = self._run(view, tokens[-1], drafted + i, columns, max_position)
            all_logits.append(logits)
            tokens.append(logits[..., :num_choices].argmax(-1))
        return torch.cat(tokens, dim=1), torch.cat(all_logits, dim=1)


def _starts(
    store: SlotCache, slots: Sequence[int], lengths: Sequence[int], num_nodes: int
) -> list[int]:
    """Return the first column of a chain in the first slot, or in every slot.

    Slots outside the batch may begin anywhere.
    """
    num_slots = 1 if tuple(slots) == (0,) else store.num_slots
    return [min(length, store.num_columns - num_nodes) for length in lengths[:num_slots]]


def _scatter(
    store: SlotCache, slots: Sequence[int], token_ids: Int[Tensor, "B N"]
) -> Int[Tensor, "S N"]:
    """Move the rows of a batch to those of their slots, unless the graph runs on the first one."""
    if tuple(slots) in ((0,), tuple(range(store.num_slots))):
        return token_ids
    by_slot = token_ids.new_zeros((store.num_slots, token_ids.shape[1]))
    return by_slot.index_copy_(0, upload(slots, store.device), token_ids)


def _gather(slots: Sequence[int], result: Shaped[Tensor, "S ..."]) -> Shaped[Tensor, "B ..."]:
    if tuple(slots) == tuple(range(result.shape[0])):
        return result
    return result.index_select(0, upload(slots, result.device))


def _columns(store: SlotCache, num_columns: int) -> Int[Tensor, " L"]:
    """Return the columns that a pass reads, rounded up to a multiple of `WIDTH_STEP`."""
    width = min(-(-num_columns // WIDTH_STEP) * WIDTH_STEP, store.num_columns)
    return _numbered(width, store.device)


@cache
def _numbered(width: int, device: torch.device) -> Int[Tensor, " L"]:
    columns = torch.arange(width, device=device)
    torch._dynamo.maybe_mark_dynamic(columns, 0)
    return columns
