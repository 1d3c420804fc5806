"""Passes over few tokens as compiled graphs, for models so small that the host sets their speed.

A graph runs on the first slot alone or on all slots, those not in the batch included, into columns nobody reads; short
chains are padded to one of a few lengths. So shapes depend only on the longest context, in steps of `WIDTH_STEP` columns,
which the graph takes as dynamic. Positions and masks are made in the graph.
"""

import bisect
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from specresearch.models.attention import GivenBiases
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView
from specresearch.models.kv_cache import Region, SlotCache
from specresearch.proposal import Topology, upload

WIDTH_STEP = 256
RECOMPILE_LIMIT = 256
UNSEEN = (
    2,
    16,
)  # how many tokens drafting may read first: more where the draft was not asked for a while


class CompiledForward:
    """The adapter's forward pass over chains, one graph for each of `chain_lengths`.

    chain_lengths: sorted. spare_columns: that the cache must have behind the last token, for padding. The first pass of a kind
    compiles every graph that later ones may need (tens of seconds each on a slow CPU): none in the middle of what is measured.
    """

    spare_columns = UNSEEN[-1]

    def __init__(self, adapter: HFAdapter) -> None:
        if not adapter.uses_slot_attention:
            raise ValueError(
                "compile=true needs attention=slot and a model that accepts it; set compile=false"
            )
        self.adapter = adapter
        self.chain_lengths: list[int] = []
        # the limit counts the graphs of all models together
        torch._dynamo.config.recompile_limit = max(
            torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT
        )
        # the host is what counts: graphs of a CPU are called from C++
        compiled = partial(
            torch.compile,
            fullgraph=True,
            options={"cpp_wrapper": adapter.model.device.type == "cpu"},
        )
        self._graph: Callable[..., Tensor] = compiled(self._run)
        self._greedy_graph: Callable[..., tuple[Tensor, Tensor]] = compiled(self._run_greedily)
        self._made: set[tuple[object, ...]] = set()

    def _run(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        starts: Int[Tensor, " S"],
        columns: Int[Tensor, " L"],
        max_position: int,
        logit_rows: Int[Tensor, " R"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Logits [S, N, V], or [1, R, V] for chosen rows, of chains that begin at column `starts` of their slots."""
        num_slots, num_nodes = token_ids.shape
        at = starts[:, None] + torch.arange(num_nodes, device=starts.device)  # column and position
        first_column = (
            torch.arange(num_slots, device=starts.device)[:, None] * view.store.num_columns
        )
        biases: dict[int | None, Tensor] = {}
        for window in {None, *self.adapter.layer_windows}:
            distance = at[:, None, :, None] - columns
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            biases[window] = torch.where(seen, 0.0, float("-inf")).to(self.adapter.model.dtype)
        plan = GivenBiases(biases)
        view.region = Region(
            tuple(range(num_slots)),
            (0,) * num_slots,
            num_nodes,
            plan.width,
            None,
            (first_column + at).flatten(),
        )
        return self.adapter.call(token_ids, at.clamp(max=max_position), view, plan, logit_rows)

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

        def run(slots: Sequence[int], token_ids: Tensor) -> Tensor:
            num_nodes = token_ids.shape[1]
            starts = self._starts(store, slots, lengths, num_nodes)
            columns = _columns(store, max(starts) + num_nodes)
            return self._graph(
                view,
                self._spread(store, slots, token_ids),
                upload(starts, store.device),
                columns,
                max_position,
            )

        self._make(("chain", *self.chain_lengths), store, self.chain_lengths, run)
        logits = run(slots, F.pad(token_ids, (0, num_nodes - wanted)))
        return self._gather(slots, logits[:, :wanted])

    def _make(
        self,
        kind: tuple[object, ...],
        store: SlotCache,
        sizes: Sequence[int],
        run: Callable[..., object],
    ) -> None:
        """Once for each kind of pass and number of slots: run it in all sizes, on the first slot and on all of them. What that
        writes lies behind the committed tokens, where the next pass writes."""
        if (store.num_slots, *kind) in self._made:
            return
        self._made.add((store.num_slots, *kind))
        for slots in {(0,), tuple(range(store.num_slots))}:
            for size in sizes:
                run(slots, torch.zeros((len(slots), size), dtype=torch.long, device=store.device))

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

        tokens: at least one a row, and no more than the last of `UNSEEN`.
        """
        store = view.store
        num_nodes = UNSEEN[bisect.bisect_left(UNSEEN, max(map(len, tokens)))]
        last, known = [0] * store.num_slots, list(lengths)
        for slot, row in zip(slots, tokens, strict=True):
            last[slot] = len(row) - 1
            known[slot] += len(row)

        def run(slots: Sequence[int], token_ids: Tensor) -> tuple[Tensor, Tensor]:
            num_nodes = token_ids.shape[1]
            starts = self._starts(store, slots, lengths, num_nodes)
            drafted = self._starts(store, slots, known, num_steps - 1)
            return self._greedy_graph(
                view,
                self._spread(store, slots, token_ids),
                upload(
                    [starts, [min(place, num_nodes - 1) for place in last[: len(starts)]], drafted],
                    store.device,
                ),
                _columns(store, max(*starts, *drafted) + max(num_nodes, num_steps)),
                num_steps,
                num_choices,
                max_position,
            )

        self._make(("greedy", num_steps, num_choices), store, UNSEEN, run)
        ids = upload([[*row, *[0] * (num_nodes - len(row))] for row in tokens], store.device)
        chosen, logits = run(slots, ids)
        return self._gather(slots, chosen), self._gather(slots, logits)

    def _run_greedily(
        self,
        view: SlotCacheView,
        token_ids: Int[Tensor, "S N"],
        places: Int[Tensor, "3 S"],
        columns: Int[Tensor, " L"],
        num_steps: int,
        num_choices: int,
        max_position: int,
    ) -> tuple[Int[Tensor, "S K"], Float[Tensor, "S K V"]]:
        """places: of each row the column of its first token, which of its tokens is the last new one, and where drafts begin."""
        num_slots, num_nodes = token_ids.shape
        starts, last, drafted = places
        ends = torch.arange(num_slots, device=last.device) * num_nodes + last
        logits = self._run(view, token_ids, starts, columns, max_position, ends).transpose(0, 1)
        tokens, seen = [logits[..., :num_choices].argmax(-1)], [logits]
        for i in range(num_steps - 1):
            seen.append(self._run(view, tokens[-1], drafted + i, columns, max_position))
            tokens.append(seen[-1][..., :num_choices].argmax(-1))
        return torch.cat(tokens, dim=1), torch.cat(seen, dim=1)

    def _starts(
        self, store: SlotCache, slots: Sequence[int], lengths: Sequence[int], num_nodes: int
    ) -> list[int]:
        """The first column of a chain in the first slot, or in every slot; those that do not run may be anywhere."""
        num_slots = 1 if tuple(slots) == (0,) else store.num_slots
        return [min(length, store.num_columns - num_nodes) for length in lengths[:num_slots]]

    def _spread(
        self, store: SlotCache, slots: Sequence[int], token_ids: Int[Tensor, "B N"]
    ) -> Int[Tensor, "S N"]:
        """Rows of the batch in the rows of their slots, where the graph runs on all of them."""
        if tuple(slots) in ((0,), tuple(range(store.num_slots))):
            return token_ids
        rows = upload(slots, store.device)
        return token_ids.new_zeros((store.num_slots, token_ids.shape[1])).index_copy_(
            0, rows, token_ids
        )

    def _gather(
        self, slots: Sequence[int], result: Shaped[Tensor, "S ..."]
    ) -> Shaped[Tensor, "B ..."]:
        if tuple(slots) == tuple(range(result.shape[0])):
            return result
        return result.index_select(0, upload(slots, result.device))


def _columns(store: SlotCache, least: int) -> Int[Tensor, " L"]:
    """The columns that a pass reads, `least` and a few more."""
    width = min(-(-least // WIDTH_STEP) * WIDTH_STEP, store.num_columns)
    return _numbered(width, store.device)


@cache
def _numbered(width: int, device: torch.device) -> Int[Tensor, " L"]:
    columns = torch.arange(width, device=device)
    torch._dynamo.maybe_mark_dynamic(columns, 0)
    return columns
