"""EAGLE's draft modules: one decoder layer that goes on from the target's hidden states, over a slot cache of its own.

EAGLE-1 and EAGLE-2 (arXiv 2401.15077, 2406.16858) share weights; EAGLE-3 is arXiv 2503.01840. The layers are the transformers
library's own, put together differently.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from specresearch.models.attention import AttentionPlan, committed_positions
from specresearch.models.causal_lm import CausalLM
from specresearch.models.head_files import (
    CONVENTIONS,
    LAYER_IDS,
    EagleFormat,
    lm_head_of,
    load_tensors,
    read_eagle,
    warn_of_other_base,
)
from specresearch.models.hf_adapter import FINAL_NORM, SLOT_ATTENTION, SlotCacheView
from specresearch.models.kv_cache import SlotCache, available_bytes
from specresearch.models.ragged import append_passes
from specresearch.proposal import Topology, upload


class EagleHead(nn.Module):
    """EAGLE-1's module: from the feature of a token and the embedding of the token after it, the feature of the latter.

    A feature is what the target's LM head reads. Its `forward` takes the attention's keyword arguments
    (`past_key_values`, `attention_plan` or `attention_mask`) on to the layer.
    """

    def __init__(self, format: EagleFormat) -> None:
        super().__init__()
        config = copy.deepcopy(format.layer)  # its attention implementation will be switched
        self.format = replace(format, layer=config)
        self.fc = nn.Linear(format.fc_width, config.hidden_size, bias=format.fc_bias)
        self.layers = nn.ModuleList([self._make_layer()])
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if format.own_embedding else None
        self.lm_head: nn.Linear | None = None
        self.target_ids: Int[Tensor, " D"] | None = None
        self.rotary_emb = LlamaRotaryEmbedding(config)

    @staticmethod
    def of(format: EagleFormat) -> "EagleHead":
        """The module of its version, with random weights on the current default device."""
        return EagleHead(format) if format.version == 1 else Eagle3Head(format)

    def _make_layer(self) -> LlamaDecoderLayer:
        layer = LlamaDecoderLayer(self.format.layer, 0)
        layer.add_module("input_layernorm", nn.Identity())
        _replace_projections(layer, self.format, self.format.layer.hidden_size)
        return layer

    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        """What the captured hidden states of the target become before they enter the layer."""
        (feature,) = hidden
        return feature

    def forward(
        self,
        embeddings: Float[Tensor, "B M H"],
        features: Float[Tensor, "B M H"],
        position_ids: Int[Tensor, "B M"],
        **attention: Any,
    ) -> Float[Tensor, "B M H"]:
        """The layer's output. Position t holds the feature of token t and the embedding of token t + 1."""
        x = self.fc(torch.cat([embeddings, features], dim=-1))
        return self.layers[0](x, **self._attention(x, position_ids), **attention)

    def _attention(self, x: Float[Tensor, "B M H"], position_ids: Int[Tensor, "B M"]) -> dict[str, Any]:
        window = {} if self.format.window is None else {"sliding_window": self.format.window}
        return {"position_embeddings": self.rotary_emb(x, position_ids), **window}

    def readable(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """What the LM head reads of an output."""
        return out

    def fed_back(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """The feature that the next drafted token goes on from."""
        return out


class Eagle3Head(EagleHead):
    """EAGLE-3's module: it fuses hidden states of several target layers, norms both of its inputs, and has its own LM head."""

    def __init__(self, format: EagleFormat) -> None:
        super().__init__(format)
        config = self.format.layer
        eps = config.rms_norm_eps
        self.norm = LlamaRMSNorm(config.hidden_size, eps)
        if format.draft_vocab_size is not None:
            self.lm_head = nn.Linear(config.hidden_size, format.draft_vocab_size, bias=False)
        self.input_norm = LlamaRMSNorm(format.fc_width, eps) if format.norm_before_fc else None
        self.fc_norm = None
        if format.num_fc_norms:
            width = format.fc_width // format.num_fc_norms
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(width, eps) for _ in range(format.num_fc_norms))

    def _make_layer(self) -> LlamaDecoderLayer:
        return _Eagle3Layer(self.format)

    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        if self.fc_norm is not None:
            hidden = [norm(state) for norm, state in zip(self.fc_norm, hidden, strict=True)]
        joined = torch.cat(list(hidden), dim=-1)
        return self.fc(joined if self.input_norm is None else self.input_norm(joined))

    def forward(
        self,
        embeddings: Float[Tensor, "B M H"],
        features: Float[Tensor, "B M H"],
        position_ids: Int[Tensor, "B M"],
        **attention: Any,
    ) -> Float[Tensor, "B M H"]:
        return self.layers[0](features, embeddings=embeddings, **self._attention(features, position_ids), **attention)

    def readable(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        return self.norm(out)

    def fed_back(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        return self.norm(out) if self.format.norm_output else out


class _Eagle3Layer(LlamaDecoderLayer):
    """A decoder layer whose attention reads the embedding beside the hidden state."""

    def __init__(self, format: EagleFormat) -> None:
        super().__init__(format.layer, 0)
        config = format.layer
        _replace_projections(self, format, 2 * config.hidden_size)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = format.norm_before_residual

    def forward(self, hidden_states: Tensor, *, embeddings: Tensor, **attention: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        hidden_states = residual + self.self_attn(both, **attention)[0]
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def _replace_projections(layer: LlamaDecoderLayer, format: EagleFormat, width: int) -> None:
    """Attention that reads `width` values, with the biases that the checkpoint has."""
    attention = layer.self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(width, getattr(attention, name).out_features, bias=format.qkv_bias))
    inner = attention.o_proj
    attention.o_proj = nn.Linear(inner.in_features, inner.out_features, bias=format.o_bias)


class EagleModel:
    """A head beside its target, with keys and values by slot: what a proposer drafts with.

    Column and position t of a slot belong to the pair (feature of token t, token t + 1). Embedding and LM head are the
    target's where the head has none of its own.

    layer_ids, id_convention: the target layers that an EAGLE-3 head captures, as `inputs` (default) or `outputs` of those
    layers; None: what its config says, and otherwise the usual three. captured_layers: in the adapter's numbering.
    Raises ValueError when head and target do not fit, and warns when the head names another target.
    """

    def __init__(
        self,
        head: EagleHead,
        target: CausalLM,
        *,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
        name: str = "the head",
    ) -> None:
        self.name, self.target = name, target
        self.device, self.dtype, self.max_len = target.device, target.dtype, target.max_len
        self.captured_layers = _captured_layers(name, head.format, target, layer_ids, id_convention)
        _check_fit(name, head, target, len(self.captured_layers))
        warn_of_other_base(name, head.format.base_model, target.name)
        if head.format.layer.hidden_size == lm_head_of(target).in_features and not head.format.trains_embedding:
            head.embed_tokens = None
        head.format.layer._attn_implementation = SLOT_ATTENTION
        del head.rotary_emb
        self.head = head.to(device=self.device, dtype=self.dtype).eval()
        head.rotary_emb = LlamaRotaryEmbedding(head.format.layer).to(self.device)  # its frequencies stay in float32
        self.target_ids = None if head.target_ids is None else head.target_ids.to(self.device)
        self._use_cache(SlotCache(0, 0, self.device))

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str,
        target: CausalLM,
        *,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> "EagleModel":
        """Load by folder, hub id or zoo name; `overrides` replace keys of the checkpoint's config, such as `rope_theta`."""
        files = read_eagle(checkpoint, revision=revision, overrides=overrides)
        with torch.device("meta"):
            head = EagleHead.of(files.format)
        load_tensors(head, files.name, files.tensors)
        head.target_ids = files.target_ids
        return cls(head, target, layer_ids=layer_ids, id_convention=id_convention, name=files.name)

    @property
    def draft_vocab_size(self) -> int:
        """How many tokens it can draft."""
        return self.target.vocab_size if self.target_ids is None else len(self.target_ids)

    def describe(self) -> str:
        """One line on what is easily loaded wrong: captured layers, rotary base, vocabulary, embedding, feedback."""
        format, num_layers = self.head.format, len(self.target.adapter.layers)
        layers = ", ".join(map(str, self.captured_layers))
        reads = "the final norm" if format.version == 1 else f"the inputs of layers {layers} of {num_layers}"
        rope: dict[str, Any] = dict(format.layer.rope_parameters or {})
        parts = [
            f"{self.name}: EAGLE-{format.version}, reads {reads} of the target",
            f"rotary base {rope['rope_theta']:g} ({rope['rope_type']})",
            f"drafts from {self.draft_vocab_size} of {self.target.vocab_size} tokens",
            f"embedding {'of the target' if self.head.embed_tokens is None else 'of its own'}",
        ]
        if format.version == 3:
            parts.append(f"feeds back {'normed' if format.norm_output else 'raw'} outputs")
        return "; ".join(parts)

    def allocate(self, num_slots: int, num_columns: int) -> None:
        """Make room for `num_slots` requests of `num_columns` pairs, those of the tree that is growing included.

        Raises MemoryError when they cannot fit.
        """
        layer = self.head.format.layer
        pair = 2 * (layer.num_key_value_heads or 1) * (layer.head_dim or 1) * self.dtype.itemsize
        needed, available = pair * num_slots * num_columns, available_bytes(self.device)
        if needed > available:
            raise MemoryError(
                f"the cache of {self.name} needs {needed:,} bytes ({num_slots} requests x {num_columns} tokens x {pair:,} bytes) "
                f"and {available:,} are available; lower batch_size or target.max_len"
            )
        self._use_cache(SlotCache(num_slots, num_columns, self.device))

    def _use_cache(self, cache: SlotCache) -> None:
        self.cache, self.view = cache, SlotCacheView(cache)
        self.lengths = [0] * cache.num_slots

    @torch.inference_mode()
    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        """Features, as `extend` takes them, of the target's hidden states at `captured_layers`."""
        return self.head.fuse(hidden)

    @torch.inference_mode()
    def extend(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[Float[Tensor, "_ H"]],
        *,
        want_logits: bool = True,
    ) -> tuple[Float[Tensor, "B _ V"], Float[Tensor, "B _ H"]]:
        """Append pairs, ragged: the target's feature of a token, and the token after it.

        Returns the logits after each row's last token, [B, 1, V], and the feature fed back from there, [B, 1, H]; every row
        then needs a pair. Unless wanted, both have length 0.
        """
        counts = [len(row) for row in tokens]
        assert counts == [len(row) for row in features]
        room = [self.cache.num_columns - self.lengths[slot] for slot in slots]
        last: dict[int, Tensor] = {}
        for rows, begin, width in append_passes(counts, room, self.target.prefill_chunk):
            parts = [list(tokens[row][begin : begin + width]) for row in rows]
            ids = upload([part + [0] * (width - len(part)) for part in parts], self.device)
            states = pad_sequence([features[row][begin : begin + width] for row in rows], batch_first=True)
            pass_slots = [slots[row] for row in rows]
            out = self._forward(pass_slots, ids, states, Topology.chain(width, self.device), 0)
            for i, (row, part) in enumerate(zip(rows, parts, strict=True)):
                self.lengths[slots[row]] += len(part)
                last[row] = out[i, len(part) - 1]
        if not want_logits:
            nothing = torch.empty(
                (len(slots), 0, self.head.format.layer.hidden_size), dtype=self.dtype, device=self.device
            )
            return nothing.new_empty((len(slots), 0, self.target.vocab_size)), nothing
        joined = torch.stack([last[row] for row in range(len(slots))])[:, None]
        return self._logits(joined), self.head.fed_back(joined)

    @torch.inference_mode()
    def grow(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
        topology: Topology,
        first: int,
    ) -> tuple[Float[Tensor, "B M V"], Float[Tensor, "B M H"]]:
        """A pass over the nodes from `first` on, M of them, of a tree whose root is the token of the last pair appended.

        features: fed back from each node's parent. Returns the logits after the nodes and what they feed back. Nothing is
        kept: the next `extend` overwrites the tree.
        """
        out = self._forward(slots, token_ids, features, topology, first, behind=1)
        return self._logits(out), self.head.fed_back(out)

    def _forward(
        self,
        slots: Sequence[int],
        token_ids: Int[Tensor, "B M"],
        features: Float[Tensor, "B M H"],
        topology: Topology,
        first: int,
        behind: int = 0,
    ) -> Float[Tensor, "B M H"]:
        starts = tuple(self.lengths[slot] - behind for slot in slots)
        region = self.cache.region(slots, tuple(start + first for start in starts), topology.num_nodes - first)
        plan = AttentionPlan(starts, topology, region.width, self.dtype, self.device, first=first)
        positions = committed_positions(starts, topology, self.device, first).clamp(max=self.max_len - 1)
        self.view.region = region
        embedding = self.head.embed_tokens or self.target.model.get_input_embeddings()
        embeddings = embedding(token_ids).to(self.device)
        positions = positions.expand(token_ids.shape)
        return self.head(embeddings, features, positions, past_key_values=self.view, attention_plan=plan)

    def _logits(self, out: Float[Tensor, "B M H"]) -> Float[Tensor, "B M V"]:
        """In the target's vocabulary; -inf for tokens that the head cannot draft."""
        lm_head = self.head.lm_head or lm_head_of(self.target)
        logits = lm_head(self.head.readable(out)).to(self.device)
        if self.target_ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.target.vocab_size), float("-inf"))
        return whole.index_copy_(-1, self.target_ids, logits)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` pairs of each slot."""
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= self.lengths[slot]
            self.lengths[slot] = length


def _captured_layers(
    name: str,
    format: EagleFormat,
    target: CausalLM,
    layer_ids: Sequence[int] | None,
    id_convention: str | None,
) -> tuple[int, ...]:
    """In the adapter's numbering, where k is the input of layer k and so the output of layer k - 1."""
    if id_convention is not None and id_convention not in CONVENTIONS:
        raise ValueError(f"proposer.id_convention={id_convention!r} is unknown; choose one of {', '.join(CONVENTIONS)}")
    if format.version == 1:
        return (FINAL_NORM,)
    num_layers = len(target.adapter.layers)
    convention = id_convention
    if layer_ids is None and format.layer_ids is not None:
        layer_ids, convention = format.layer_ids, id_convention or format.id_convention
        if id_convention is None and format.id_convention == "outputs":
            warnings.warn(
                f"{name}: {LAYER_IDS}={list(layer_ids)} in eagle_config is read as the outputs of those layers, as its writers "
                "mean it; some engines read inputs. Set proposer.id_convention to outputs or inputs to say which",
                stacklevel=4,
            )
    if layer_ids is None:
        captured = (2, num_layers // 2, num_layers - 3)
    else:
        captured = tuple(int(k) + (convention == "outputs") for k in layer_ids)
    if not all(0 <= k <= num_layers for k in captured):
        raise ValueError(
            f"{name} captures the inputs of layers {list(captured)} and the target has {num_layers} layers; set "
            "proposer.layer_ids"
        )
    return captured


def _check_fit(name: str, head: EagleHead, target: CausalLM, num_layers: int) -> None:
    format, width = head.format, lm_head_of(target).in_features
    hidden_size, vocab_size = format.layer.hidden_size, format.layer.vocab_size
    if vocab_size != target.vocab_size:
        raise ValueError(
            f"{name} was made for a vocabulary of {vocab_size} tokens and the target has {target.vocab_size}; use a head of "
            "this target"
        )
    stated = format.target_hidden_size
    if stated is not None and stated != width:
        raise ValueError(
            f"{name} has target_hidden_size={stated} and the target's is {width}; use a head of this target"
        )
    reads = hidden_size + width if format.version == 1 else num_layers * width
    if format.fc_width != reads:
        raise ValueError(
            f"fc.weight of {name} reads {format.fc_width} values and this target gives {reads}; use a head of this target, "
            "or set proposer.layer_ids"
        )
    if head.lm_head is None and hidden_size != width:
        raise ValueError(
            f"{name} is {hidden_size} wide and would need the LM head of the target, which is {width} wide"
        )
    if head.embed_tokens is None and hidden_size != width:
        raise ValueError(f"{name} is {hidden_size} wide, the target {width}, and embed_tokens.weight is missing")
