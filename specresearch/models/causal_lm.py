"""A causal LM that verifies draft trees: prefill, one pass over all nodes, commit the path."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specresearch.models import loading
from specresearch.models.compiled import CompiledForward
from specresearch.models.flash_kernels import FlashKernel
from specresearch.models.hf_adapter import FINAL_NORM, length_limit
from specresearch.models.hf_model import HFModel, ModelOutput
from specresearch.models.kernel_choice import NoKernelError, find_kernel
from specresearch.models.kv_cache import SlotCache
from specresearch.models.pass_graphs import PaddedPass, PassGraphs, Plan
from specresearch.models.ragged import Packing
from specresearch.models.random_weights import Weights, name_of
from specresearch.models.self_test import check_tree_is_sequences
from specresearch.models.slot_model import SlotModel
from specresearch.proposal import Proposal, Topology, upload

__all__ = ["CausalLM", "ModelOutput"]

LONGEST_DEFAULT = 1 << 17  # of models that allow longer contexts; `max_len` overrides it


class CausalLM(HFModel, SlotModel):
    """Any decoder-only Hugging Face model over a preallocated slot cache.

    Args:
        model: Its attention implementation is switched, so do not share it with other code.
        max_len: Longest context (prompt and output) in tokens; None means what the model allows.
        attention: two_part (flash kernels, which read the cache in place), slot (masks, for every
            device and precision), sdpa or eager (transformers'). auto is two_part on a GPU where
            it works, otherwise slot.
        prefill_chunk: Tokens of one prompt processed per pass.
        compile: On a CPU, compile passes over short chains, which pays when the host sets the
            speed: tens of seconds at the start, and it needs a C++ compiler. On a GPU, compile the
            decoder layers that graphs run.
        pack_weights: On a CPU, keep a second copy of the linear layers' weights in the order that
            its kernels read, for faster passes over few tokens. None packs if the copy fits into
            half of the free memory.
        graphs: Run passes over few nodes as CUDA graphs, which spares the host a launch for every
            operation. None does so on a GPU. True on a CPU runs them on the graphs' padded buffers,
            for tests.
        self_test: Check on construction that a tree gives the logits of its paths.

    Raises:
        UnsupportedModelError: If the model cannot be verified exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_len: int | None = None,
        attention: str = "auto",
        prefill_chunk: int = 1024,
        compile: bool = False,
        pack_weights: bool | None = None,
        graphs: bool | None = None,
        name: str = "",
        self_test: bool = True,
    ) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk={prefill_chunk} must be at least 1")
        HFModel.__init__(
            self, model, tokenizer, attention=attention, pack_weights=pack_weights, name=name
        )
        if graphs is None:
            graphs = self.device.type == "cuda" and self._is_on_one_device()
        self.compile = compile
        self._compiled = CompiledForward(self.adapter) if compile and not graphs else None
        self.has_buffers_apart = self.compiled
        limit = length_limit(model)
        if max_len is not None and not 2 <= max_len <= limit:
            raise ValueError(f"target.max_len={max_len}: {self.name} works for 2 to {limit} tokens")
        self.max_len = min(limit, LONGEST_DEFAULT) if max_len is None else max_len
        self.prefill_chunk = prefill_chunk
        self.module = model
        self.layer_config = model.config.get_text_config(decoder=True)
        self.num_layers = self.layer_config.num_hidden_layers
        SlotModel.__init__(self)
        with self.scratch_cache(1, 2) as layers:  # one token shows the layers' shapes
            self.extend((0,), [[0]], want_logits=False)
        self.bytes_per_token = layers.bytes_per_column
        self.kernel = self._find_kernel(layers)
        self._use_cache(layers.emptied())
        self.windows = self.adapter.layer_windows
        if self_test:
            check_tree_is_sequences(self)
        if graphs and self.adapter.uses_slot_attention:
            self.passes = PassGraphs(self, compile=compile)
        self._no_rows = upload([], self.device, torch.long)

    def _is_on_one_device(self) -> bool:
        return len({parameter.device for parameter in self.model.parameters()}) == 1

    def _find_kernel(self, layers: SlotCache) -> FlashKernel | None:
        """Return the kernel for attention in two parts; None if attention is another one.

        Args:
            layers: A cache that the model has written to.

        Raises:
            ValueError: If attention=two_part, and no kernel serves the model.
        """
        attention = self.adapter.attention
        if attention != "two_part" and (attention != "auto" or self.device.type != "cuda"):
            return None
        try:
            return find_kernel(self.adapter.layer_shapes(layers))
        except NoKernelError as error:
            if attention == "auto":
                return None
            raise ValueError(
                f"attention=two_part does not work for {self.name}: {error}; use attention=auto"
            ) from error

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        max_len: int | None = None,
        attention: str = "auto",
        prefill_chunk: int = 1024,
        compile: bool = False,
        pack_weights: bool | None = None,
        graphs: bool | None = None,
        self_test: bool = True,
        weights: Weights = "trained",
        gguf_file: str | None = None,
        **load: Any,
    ) -> "CausalLM":
        """Load by zoo name (`zoo:tiny`), local path or hub id.

        Args:
            weights: `random`, like `gguf_file` and `load`, is explained at `loading.load_model`.
        """
        loaded, tokenizer = loading.load_model(model, weights=weights, gguf_file=gguf_file, **load)
        return cls(
            loaded,
            tokenizer,
            max_len=max_len,
            attention=attention,
            prefill_chunk=prefill_chunk,
            compile=compile,
            pack_weights=pack_weights,
            graphs=graphs,
            name=name_of(model, weights, gguf_file),
            self_test=self_test,
        )

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    @property
    def attention(self) -> str:
        """The attention in use, which `auto` and models that keep their own leave open."""
        if self.kernel is not None:
            return f"two_part ({self.kernel.name})"
        if self.adapter.uses_slot_attention:
            return "slot"
        return str(self.model.config._attn_implementation)

    def unpack_weights(self) -> None:
        assert not self.compiled, "a compiled graph keeps calling the layers it was traced with"
        super().unpack_weights()
        self.passes = None

    def allocate(self, num_slots: int, *num_nodes: int, max_len: int | None = None) -> None:
        """Make room for `num_slots` requests; a cache that is large enough is kept.

        Args:
            num_nodes: Sizes of trees that passes will often have; the largest must fit.
            max_len: Longest context in tokens; None means the model's own.

        Raises:
            MemoryError: If the cache cannot fit.
            RuntimeError: If the cache would have to grow while requests are running.
        """
        sizes = (1, *num_nodes)
        if self._compiled is not None:
            for length in sizes:
                self._compiled.add_chain_length(length)
            sizes = (*sizes, self._compiled.spare_columns)
        self.reserve(num_slots, self.max_len if max_len is None else max_len, *sizes)

    @torch.inference_mode()
    def _forward(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B N"],
        topology: Topology,
        *,
        logit_rows: Int[Tensor, " R"] | None = None,
        hidden_layers: Sequence[int] = (),
        first: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one pass; returns the logits and the hidden states.

        Args:
            logit_rows: Rows of the flattened batch that need logits; None means all of them.
            first: Nodes of the tree that earlier passes have written.
            lengths: Nodes to feed of each row, where padding may be left out.
        """
        if self.passes is not None:
            padded = self.passes.fit(slots, topology, first)
            if padded is None and first == 0:
                padded = self.passes.fit_append(slots, topology)
            if padded is not None:
                return self._forward_padded(
                    padded, slots, token_ids, topology, logit_rows, hidden_layers
                )
        packing = None if lengths is None else self._packing(slots, lengths, topology.num_nodes)
        whole_chain = packing is None and first == 0 and not hidden_layers
        if self._compiled is not None and whole_chain and self._compiled.covers(topology):
            logits = self._compiled(self.view, self.lengths, slots, token_ids, self.max_len - 1)
            if logit_rows is not None:
                logits = logits.flatten(0, 1).index_select(0, logit_rows)[None]
            return logits, ()
        plan, positions = self._plan_pass(slots, topology, first, packing=packing)
        if packing is not None:
            token_ids, positions = (
                packing.pack(token_ids),
                packing.pack(positions.expand_as(token_ids)),
            )
        logits, hidden = self.adapter.forward(
            token_ids,
            positions,
            self.view,
            plan,
            logit_rows=logit_rows,
            hidden_layers=hidden_layers,
        )
        if packing is None:
            return logits, hidden
        return packing.unpack(logits), tuple(packing.unpack(layer) for layer in hidden)

    def _forward_padded(
        self,
        padded: PaddedPass,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B M"],
        topology: Topology,
        logit_rows: Int[Tensor, " R"] | None,
        hidden_layers: Sequence[int],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one pass as a graph; the LM head runs outside, so that no graph holds logits."""
        assert self.passes is not None
        layers = (*hidden_layers, FINAL_NORM)

        def body(plan: Plan, positions: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
            return self.states(token_ids, plan, positions, layers)

        *hidden, final = self.passes.run(padded, layers, slots, topology, body, [token_ids])
        if logit_rows is not None:
            final = final.flatten(0, 1).index_select(0, logit_rows)[None]
        return self.readout(final), tuple(hidden)

    def states(
        self,
        token_ids: Int[Tensor, "B M"],
        plan: Plan,
        positions: Int[Tensor, "B M"],
        hidden_layers: Sequence[int] = (FINAL_NORM,),
    ) -> tuple[Float[Tensor, "B M H"], ...]:
        """Run a pass inside of a graph, over the region that is set; return hidden states."""
        return self.adapter.forward(
            token_ids, positions, self.view, plan, self._no_rows, hidden_layers
        )[1]

    def _packing(
        self, slots: Sequence[int], lengths: Sequence[int], num_nodes: int
    ) -> Packing | None:
        """Decide whether a pass leaves padding out."""
        if not self.adapter.uses_slot_attention:
            return None
        starts = [self.lengths[slot] for slot in slots]
        keep_full = self.compiled or self.kernel is not None
        return Packing.if_worthwhile(lengths, starts, num_nodes, self.device, keep_full=keep_full)

    def forward(
        self, slots: Sequence[int], proposal: Proposal, *, hidden_layers: Sequence[int] = ()
    ) -> ModelOutput:
        """Run every node of every row; node i is written to column length + i of its slot."""
        logits, hidden = self._forward(
            slots,
            proposal.token_ids,
            proposal.topology,
            hidden_layers=hidden_layers,
            lengths=proposal.host_lengths,
        )
        return ModelOutput(logits, hidden)

    def grow(
        self, slots: Sequence[int], token_ids: Int[Tensor, "B M"], topology: Topology, first: int
    ) -> Float[Tensor, "B M V"]:
        """Run the M nodes from `first` on of a tree whose earlier nodes were fed before.

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
        """Append committed tokens, ragged, in chunks.

        Args:
            tokens: New tokens of each row; at least one a row if logits are wanted.

        Returns:
            The logits after each row's last token, [B, 1, V] ([B, 0, V] unless wanted), and the
            hidden states of all appended tokens, right-padded.
        """
        last: dict[int, Tensor] = {}
        states: list[list[list[Tensor]]] = [[[] for _ in slots] for _ in hidden_layers]
        for chunk in self._chunks(slots, tokens):
            ends = chunk.ends if want_logits else {}
            logits, hidden = self._forward(
                chunk.slots,
                chunk.token_ids,
                Topology.chain(chunk.token_ids.shape[1], self.device),
                logit_rows=upload(list(ends.values()), self.device, torch.long),
                hidden_layers=hidden_layers,
            )
            for k, row in enumerate(ends):
                last[row] = logits[0, k]
            for layer_rows, layer in zip(states, hidden, strict=True):
                for i, row in enumerate(chunk.rows):
                    layer_rows[row].append(layer[i, : chunk.lengths[i]])
        joined = self._empty(len(slots), 0, self.vocab_size)
        if want_logits:
            joined = self._stack(last, len(slots))
        return ModelOutput(joined, tuple(self._join(layer_rows) for layer_rows in states))

    def _join(self, rows: list[list[Tensor]]) -> Float[Tensor, "B N H"]:
        """Concatenate the chunks of each row and right-pad the rows with zeros."""
        width = next(chunks[0].shape[-1] for chunks in rows if chunks)
        nothing = self._empty(0, width)
        return pad_sequence([torch.cat([nothing, *chunks]) for chunks in rows], batch_first=True)

    def append(self, slots: Sequence[int], tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B 1 V"]:
        """Append one token per row, which stays on the device; return the logits after it."""
        logits, _ = self._forward(slots, tokens, Topology.chain(1, self.device))
        for slot in slots:
            self.lengths[slot] += 1
        return logits

    @torch.inference_mode()
    def draft_greedily(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_steps: int,
        num_choices: int,
    ) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K V"]]:
        """Append tokens and their greedy continuation, but for its last token, in one graph.

        Args:
            tokens: New tokens of each row, at least one.
            num_steps: K, the tokens to draft.
            num_choices: Only the first `num_choices` ids are drafted.

        Returns:
            The K tokens, and the logits that chose them.
        """
        assert self._compiled is not None
        if max(map(len, tokens)) > self._compiled.spare_columns:
            self.extend(slots, [row[:-1] for row in tokens], want_logits=False)
            tokens = [row[-1:] for row in tokens]
        chosen = self._compiled.draft_greedily(
            self.view,
            self.lengths,
            slots,
            tokens,
            num_steps=num_steps,
            num_choices=num_choices,
            max_position=self.max_len - 1,
        )
        for slot, row in zip(slots, tokens, strict=True):
            self.lengths[slot] += len(row) + num_steps - 1
        return chosen
