"""A causal LM that verifies trees of drafts: prefill, one pass over every node, keep the accepted path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from specresearch.models import loading
from specresearch.models.attention import AttentionPlan, committed_positions
from specresearch.models.compiled import CompiledForward
from specresearch.models.hf_adapter import HFAdapter, SlotCacheView, length_limit
from specresearch.models.kv_cache import SlotCache, available_bytes
from specresearch.models.packed import pack_linear_layers, unpack_linear_layers
from specresearch.models.ragged import Packing, append_passes
from specresearch.models.self_test import check_tree_is_sequences
from specresearch.models.slots import Slots
from specresearch.proposal import Proposal, Topology, Verdict, upload


@dataclass(frozen=True)
class ModelOutput:
    """logits: row i is the distribution after node i. hidden: the layers asked for, in that order, at all M tokens fed."""

    logits: Float[Tensor, "B N V"]
    hidden: tuple[Float[Tensor, "B M H"], ...] = ()


class CausalLM(Slots):
    """Any decoder-only Hugging Face model over a preallocated slot cache.

    model: used as it is; its attention implementation is switched, so do not share it with other code.
    max_len: longest context (prompt and output) in tokens; None = what the model allows.
    attention: slot (default), flash (flash-attn for chains), sdpa or eager (the library's own).
    prefill_chunk: tokens of one prompt processed per pass.
    compile: run chains of few tokens as compiled graphs, which pays when the host sets the speed; takes tens of seconds at the
    first steps and, on a CPU, needs a C++ compiler.
    pack_weights: on a CPU, keep a second copy of the linear layers' weights in the order that its kernels read, for faster passes
    over few tokens; None = where the copy fits into half of the free memory.
    Raises UnsupportedModelError when the model cannot be verified exactly, by rule or by a self-test on construction.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_len: int | None = None,
        attention: str = "slot",
        prefill_chunk: int = 1024,
        compile: bool = False,
        pack_weights: bool | None = None,
        name: str = "",
        self_test: bool = True,
    ) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk={prefill_chunk} must be at least 1")
        super().__init__(0)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        pack_linear_layers(model, pack_weights)
        self.adapter = HFAdapter(model, attention)
        self._compiled = CompiledForward(self.adapter) if compile else None
        limit = length_limit(model)
        if max_len is not None and not 2 <= max_len <= limit:
            raise ValueError(f"max_len={max_len}: {self.name} works for 2 to {limit} tokens")
        self.max_len = min(limit, 1 << 17) if max_len is None else max_len
        self.prefill_chunk = prefill_chunk
        self._use_cache(SlotCache(0, 0, self.device))
        layers = self._find_layers()
        self.bytes_per_token = layers.bytes_per_column
        self._use_cache(layers.emptied())
        if self_test:
            check_tree_is_sequences(self)

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        max_len: int | None = None,
        attention: str = "slot",
        prefill_chunk: int = 1024,
        compile: bool = False,
        pack_weights: bool | None = None,
        self_test: bool = True,
        **load: Any,
    ) -> "CausalLM":
        """Load by zoo name (`zoo:tiny`), local path or hub id; `load`: see `loading.load_model`."""
        loaded, tokenizer = loading.load_model(model, **load)
        return cls(
            loaded,
            tokenizer,
            max_len=max_len,
            attention=attention,
            prefill_chunk=prefill_chunk,
            compile=compile,
            pack_weights=pack_weights,
            name=model,
            self_test=self_test,
        )

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        return self.adapter.vocab_size

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end an output, by the first of generation config, config and tokenizer that names any."""
        generation = getattr(self.model, "generation_config", None)
        for owner in (generation, self.model.config, self.tokenizer):
            ids = getattr(owner, "eos_token_id", None)
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()

    def unpack_weights(self) -> None:
        """Give up the second copy of the weights, for good: a model that learns must decode with its weights as they are.

        A compiled graph would keep calling the layers that it was traced with, so there must be none.
        """
        assert not self.compiled
        unpack_linear_layers(self.model)

    def _use_cache(self, cache: SlotCache) -> None:
        self.cache = cache
        self.view = SlotCacheView(cache)
        self._clear(cache.num_slots)

    def free_cache(self) -> None:
        """Give back the memory of all slots, none of which may be in use; `allocate` makes them anew."""
        self._use_cache(self.cache.emptied())

    def allocate(self, num_slots: int, *num_nodes: int, max_len: int | None = None) -> None:
        """Make room for `num_slots` requests at `max_len` tokens (None: the model's own) with the most of `num_nodes` each, which
        passes will often have; keeps a cache that is large enough.

        Raises MemoryError, before any decoding, when the cache cannot fit.
        """
        num_spare = max(num_nodes, default=1)
        if self._compiled is not None:
            num_spare = max(num_spare, self._compiled.spare_columns)
            for length in (1, *num_nodes):
                self._compiled.add_chain_length(length)
        num_columns = (self.max_len if max_len is None else max_len) + num_spare
        if self.cache.num_slots >= num_slots and self.cache.num_columns >= num_columns:
            return
        if self.in_use:
            raise RuntimeError(
                "the cache cannot grow while requests are running; finish them first"
            )
        num_slots, num_columns = (
            max(num_slots, self.cache.num_slots),
            max(num_columns, self.cache.num_columns),
        )
        needed = self.bytes_per_token * num_slots * num_columns
        available = (
            sum(map(available_bytes, {p.device for p in self.model.parameters()}))
            + self.cache.num_bytes
        )
        if needed > available:
            raise MemoryError(
                f"the cache of {self.name} needs {needed:,} bytes ({num_slots} requests x {num_columns} tokens x "
                f"{self.bytes_per_token:,} bytes) and {available:,} are available; lower batch_size or target.max_len"
            )
        layers = self.cache.emptied()
        self._use_cache(layers)  # frees the old buffers before the new ones are made
        self._use_cache(SlotCache(num_slots, num_columns, self.device, like=layers))

    @torch.inference_mode()
    def _forward(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B N"],
        topology: Topology,
        logit_rows: Int[Tensor, " R"] | None = None,
        hidden_layers: Sequence[int] = (),
        first: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        packing = None
        starts = tuple(self.lengths[slot] for slot in slots)
        if lengths is not None and self.adapter.uses_slot_attention and not self.adapter.flash:
            packing = Packing.if_worthwhile(
                lengths,
                starts,
                topology.num_nodes,
                self.device,
                keep_full=self._compiled is not None,
            )
        if (
            packing is None
            and self._compiled is not None
            and self._compiled.covers(topology)
            and not (hidden_layers or first)
        ):
            logits = self._compiled(self.view, self.lengths, slots, token_ids, self.max_len - 1)
            return (
                logits
                if logit_rows is None
                else logits.flatten(0, 1).index_select(0, logit_rows)[None]
            ), ()
        new = tuple(start + first for start in starts)
        fed = None if packing is None else packing.index
        region = self.cache.region(slots, new, topology.num_nodes - first, fed)
        flash = self.adapter.flash
        plan = AttentionPlan(
            starts, topology, region.width, self.dtype, self.device, flash, first, packing
        )
        positions = committed_positions(starts, topology, self.device, first)
        if (
            region.width > self.max_len
        ):  # drafts beyond the last position are never accepted, but must stay in range
            positions = positions.clamp(max=self.max_len - 1)
        self.view.region = region
        if packing is None:
            return self.adapter.forward(
                token_ids, positions, self.view, plan, logit_rows, hidden_layers
            )
        packed, positions = packing.pack(token_ids), packing.pack(positions.expand_as(token_ids))
        logits, hidden = self.adapter.forward(
            packed, positions, self.view, plan, None, hidden_layers
        )
        return packing.unpack(logits), tuple(packing.unpack(layer) for layer in hidden)

    def forward(
        self, slots: Sequence[int], proposal: Proposal, *, hidden_layers: Sequence[int] = ()
    ) -> ModelOutput:
        """One pass over every node of every row. Node i's keys and values go to column length + i of its slot."""
        lengths = proposal.host_lengths
        logits, hidden = self._forward(
            slots, proposal.token_ids, proposal.topology, None, hidden_layers, lengths=lengths
        )
        return ModelOutput(logits, hidden)

    def grow(
        self, slots: Sequence[int], token_ids: Int[Tensor, "B M"], topology: Topology, first: int
    ) -> Float[Tensor, "B M V"]:
        """A pass over the nodes from `first` on, M of them, of a tree whose earlier nodes were fed by passes before this one.

        Nothing is committed: the next `extend` or `forward` overwrites the tree.
        """
        return self._forward(slots, token_ids, topology, first=first)[0]

    def extend(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        want_logits: bool = True,
        hidden_layers: Sequence[int] = (),
    ) -> ModelOutput:
        """Append committed tokens, ragged, in chunks; each row needs at least one where logits are wanted.

        Returns the logits after each row's last token, [B, 1, V] ([B, 0, V] unless wanted), and the hidden states of all
        appended tokens, right-padded.
        """
        counts = [len(row) for row in tokens]
        last: dict[int, Tensor] = {}
        states: list[list[list[Tensor]]] = [[[] for _ in slots] for _ in hidden_layers]
        room = [self.cache.num_columns - self.lengths[slot] for slot in slots]
        for rows, begin, width in append_passes(counts, room, self.prefill_chunk):
            parts = [list(tokens[row][begin : begin + width]) for row in rows]
            ids = upload([part + [0] * (width - len(part)) for part in parts], self.device)
            ending = (
                [i for i, row in enumerate(rows) if counts[row] <= begin + width]
                if want_logits
                else []
            )
            at = upload([i * width + len(parts[i]) - 1 for i in ending], self.device, torch.long)
            chunk_slots = [slots[row] for row in rows]
            logits, hidden = self._forward(
                chunk_slots, ids, Topology.chain(width, self.device), at, hidden_layers
            )
            last |= {rows[i]: logits[0, k] for k, i in enumerate(ending)}
            for slot, part in zip(chunk_slots, parts, strict=True):
                self.lengths[slot] += len(part)
            for layer, state in zip(states, hidden, strict=True):
                for i, row in enumerate(rows):
                    layer[row].append(state[i, : len(parts[i])])
        if not want_logits:
            joined = torch.empty(
                (len(slots), 0, self.vocab_size), dtype=self.dtype, device=self.device
            )
        else:
            joined = torch.stack([last[row] for row in range(len(slots))])[:, None]
        return ModelOutput(joined, tuple(self._join(layer) for layer in states))

    def _join(self, rows: list[list[Tensor]]) -> Float[Tensor, "B N H"]:
        """The chunks of each row, one after the other, right-padded with zeros."""
        width = next(chunks[0].shape[-1] for chunks in rows if chunks)
        nothing = torch.zeros((0, width), dtype=self.dtype, device=self.device)
        return pad_sequence([torch.cat([nothing, *chunks]) for chunks in rows], batch_first=True)

    def append(self, slots: Sequence[int], tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B 1 V"]:
        """Append one token to every row, which never leaves the device; the logits after it."""
        logits, _ = self._forward(slots, tokens, Topology.chain(1, self.device))
        for slot in slots:
            self.lengths[slot] += 1
        return logits

    def forward_whole(
        self,
        token_ids: Int[Tensor, "B T"],
        hidden_layers: Sequence[int] = (),
        *,
        want_logits: bool = False,
    ) -> ModelOutput:
        """One pass over whole sequences, right-padded, without a slot: what training sees, with gradients where they are on.

        Logits only where wanted, [B, T, V], and otherwise [B, 0, V]; see `readout`.
        """
        rows, num_tokens = token_ids.shape
        topology = Topology.chain(num_tokens, self.device)
        plan = AttentionPlan((0,) * rows, topology, num_tokens, self.dtype, self.device)
        positions = committed_positions(plan.starts, topology, self.device)
        nothing = None if want_logits else torch.empty(0, dtype=torch.long, device=self.device)
        logits, hidden = self.adapter.forward(
            token_ids, positions, DynamicCache(), plan, nothing, hidden_layers
        )
        return ModelOutput(
            logits if want_logits else logits.new_empty((rows, 0, self.vocab_size)), hidden
        )

    def readout(self, states: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows V"]:
        """Logits of hidden states after the final norm (`FINAL_NORM`)."""
        return self.adapter.readout(states)

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    @torch.inference_mode()
    def draft_greedily(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_steps: int,
        num_choices: int,
    ) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K V"]]:
        """Append tokens, ragged, at least one a row, and their likeliest continuation but for its last token: one compiled graph.

        Returns the K tokens, each the likeliest of the first `num_choices` ids, and the logits that chose them.
        """
        assert self._compiled is not None
        if max(map(len, tokens)) > self._compiled.spare_columns:
            self.extend(slots, [row[:-1] for row in tokens], want_logits=False)
            tokens = [row[-1:] for row in tokens]
        limit = self.max_len - 1
        chosen = self._compiled.draft_greedily(
            self.view, self.lengths, slots, tokens, num_steps, num_choices, limit
        )
        for slot, row in zip(slots, tokens, strict=True):
            self.lengths[slot] += len(row) + num_steps - 1
        return chosen

    @torch.inference_mode()
    def commit(self, slots: Sequence[int], verdict: Verdict) -> None:
        """Keep the keys and values of the accepted path, in consecutive columns; forget everything behind it.

        The verdict lies on the host. A chain needs no move.
        """
        moves: list[tuple[int, int, int]] = []
        for slot, path in zip(slots, verdict.path.tolist(), strict=True):
            start = self.lengths[slot]
            kept = [node for node in path if node >= 0]
            moves += [(slot, start + node, start + i) for i, node in enumerate(kept) if node != i]
            self.lengths[slot] = start + len(kept)
        if moves:
            self.cache.move(*zip(*moves, strict=True))

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` tokens of each slot."""
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= self.lengths[slot]
            self.lengths[slot] = length

    @contextmanager
    def scratch_cache(self, num_slots: int, num_columns: int) -> Iterator[SlotCache]:
        """For a trial: an empty cache in place of the model's own, which comes back as it was."""
        keep, self.max_len, limit = self.cache, max(self.max_len, num_columns), self.max_len
        self._use_cache(SlotCache(num_slots, num_columns, self.device))
        try:
            yield self.cache
        finally:
            self.max_len = limit
            self._use_cache(keep)

    def _find_layers(self) -> SlotCache:
        """A small cache with the layers' shapes, found by running one token."""
        with self.scratch_cache(1, 2) as cache:
            self.extend((0,), [[0]], want_logits=False)
        return cache
