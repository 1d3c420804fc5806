"""EAGLE's draft modules: one decoder layer that goes on from the target's hidden states.

EAGLE-1 and EAGLE-2 (arXiv 2401.15077, 2406.16858) share weights; EAGLE-3 is arXiv 2503.01840. The
layers are transformers' own, put together differently.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specresearch.models.causal_lm import CausalLM
from specresearch.models.eagle_checkpoint import read_eagle
from specresearch.models.eagle_format import Eagle1Format, Eagle3Format, EagleFormat
from specresearch.models.head_files import load_tensors
from specresearch.models.head_fit import lm_head_of, warn_of_other_base
from specresearch.models.hf_adapter import cache_argument
from specresearch.models.random_weights import Weights


class EagleHead(nn.Module):
    """EAGLE-1's module: from a token's feature and the next token's embedding to the next feature.

    A feature is what the target's LM head reads. `forward` passes the attention's keyword
    arguments (`cache_argument`, `attention_plan` or `attention_mask`) on to the layer.

    Attributes:
        name: What messages call the head.
        cache_argument: What its attention calls the cache.
        target_ids: The target's id of every draft id; None if they are the same.
    """

    name = "the head"

    def __init__(self, format: EagleFormat) -> None:
        super().__init__()
        config = copy.deepcopy(format.layer)  # its attention implementation will be switched
        self.format = replace(format, layer=config)
        self.fc = nn.Linear(format.fc_width, config.hidden_size, bias=format.fc_bias)
        layer = self._make_layer()
        self.cache_argument = cache_argument(layer.self_attn)
        self.layers = nn.ModuleList([layer])
        self.embed_tokens: nn.Embedding | None = None
        if format.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head: nn.Linear | None = None
        self.target_ids: Int[Tensor, " D"] | None = None
        self.rotary_emb = LlamaRotaryEmbedding(config)

    @staticmethod
    def of(format: EagleFormat) -> "EagleHead":
        """Make the module of a format, with random weights on the current default device."""
        return HEADS[type(format)](format)

    @staticmethod
    def from_pretrained(
        checkpoint: str,
        *,
        revision: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        weights: Weights = "trained",
    ) -> "EagleHead":
        """Load by folder, hub id or zoo name.

        Args:
            overrides: Replace keys of the checkpoint's config, such as `rope_theta`.
            weights: `random` is explained at `read_head`.
        """
        files = read_eagle(checkpoint, revision=revision, overrides=overrides, weights=weights)
        with torch.device("meta"):
            head = EagleHead.of(files.format)
        load_tensors(head, files.name, files.tensors)
        head.rotary_emb = LlamaRotaryEmbedding(head.format.layer)  # no file holds its frequencies
        head.name, head.target_ids = files.name, files.target_ids
        return head

    def check_fit(self, target: CausalLM, num_layers: int) -> None:
        """Warn if the head names another target.

        Raises:
            ValueError: If the head cannot read `num_layers` layers of the target.
        """
        format, width = self.format, lm_head_of(target).in_features
        hidden_size, vocab_size = format.layer.hidden_size, format.layer.vocab_size
        if vocab_size != target.vocab_size:
            raise ValueError(
                f"{self.name} was made for a vocabulary of {vocab_size} tokens and the target has "
                f"{target.vocab_size}; use a head of this target"
            )
        stated = format.target_hidden_size
        if stated is not None and stated != width:
            raise ValueError(
                f"{self.name} has target_hidden_size={stated} and the target's is {width}; use a "
                "head of this target"
            )
        input_width = format.input_width(hidden_size, width, num_layers)
        if format.fc_width != input_width:
            raise ValueError(
                f"fc.weight of {self.name} reads {format.fc_width} values and this target gives "
                f"{input_width}; use a head of this target, or set proposer.layer_ids"
            )
        if self.lm_head is None and hidden_size != width:
            raise ValueError(
                f"{self.name} is {hidden_size} wide and would need the LM head of the target, "
                f"which is {width} wide"
            )
        if self.embed_tokens is None and hidden_size != width:
            raise ValueError(
                f"{self.name} is {hidden_size} wide, the target {width}, and embed_tokens.weight "
                "is missing"
            )
        warn_of_other_base(self.name, format.base_model, target.name)

    def _make_layer(self) -> LlamaDecoderLayer:
        layer = LlamaDecoderLayer(self.format.layer, 0)
        layer.add_module("input_layernorm", nn.Identity())
        _replace_projections(layer, self.format, self.format.layer.hidden_size)
        return layer

    def fuse(self, hidden: Sequence[Float[Tensor, "*rows _"]]) -> Float[Tensor, "*rows H"]:
        """Turn the captured hidden states of the target into the layer's input."""
        (feature,) = hidden
        return feature

    def forward(
        self,
        embeddings: Float[Tensor, "B M H"],
        features: Float[Tensor, "B M H"],
        position_ids: Int[Tensor, "B M"],
        **attention: Any,
    ) -> Float[Tensor, "B M H"]:
        """Run the layer; position t holds the feature of token t and the embedding of t + 1."""
        x = self.fc(torch.cat([embeddings, features], dim=-1))
        return self.layers[0](x, **self._attention(x, position_ids), **attention)

    def _attention(
        self, x: Float[Tensor, "B M H"], position_ids: Int[Tensor, "B M"]
    ) -> dict[str, Any]:
        window = {} if self.format.window is None else {"sliding_window": self.format.window}
        return {"position_embeddings": self.rotary_emb(x, position_ids), **window}

    def readable(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Return what the LM head reads of an output."""
        return out

    def fed_back(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        """Return the feature that the next drafted token goes on from."""
        return out

    def notes(self) -> list[str]:
        """List further traits that are easily loaded wrong."""
        return []


class Eagle3Head(EagleHead):
    """EAGLE-3's module: fuses several target layers, norms its inputs, and has its own LM head."""

    def __init__(self, format: EagleFormat) -> None:
        super().__init__(format)
        config = self.format.layer
        eps = config.rms_norm_eps
        self.norm = LlamaRMSNorm(config.hidden_size, eps)
        if format.draft_vocab_size is not None:
            self.lm_head = nn.Linear(config.hidden_size, format.draft_vocab_size, bias=False)
        self.input_norm = LlamaRMSNorm(format.fc_width, eps) if format.norm_before_fc else None
        self.fc_norm: nn.ModuleList | None = None
        if format.num_fc_norms:
            width = format.fc_width // format.num_fc_norms
            norms = [LlamaRMSNorm(width, eps) for _ in range(format.num_fc_norms)]
            self.fc_norm = nn.ModuleList(norms)

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
        attention |= self._attention(features, position_ids)
        return self.layers[0](features, embeddings=embeddings, **attention)

    def readable(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        return self.norm(out)

    def fed_back(self, out: Float[Tensor, "*rows H"]) -> Float[Tensor, "*rows H"]:
        return self.norm(out) if self.format.norm_output else out

    def notes(self) -> list[str]:
        return [f"feeds back {'normed' if self.format.norm_output else 'raw'} outputs"]


HEADS: dict[type[EagleFormat], type[EagleHead]] = {
    Eagle1Format: EagleHead,
    Eagle3Format: Eagle3Head,
}


class _Eagle3Layer(LlamaDecoderLayer):
    """A decoder layer whose attention reads the embedding beside the hidden state."""

    def __init__(self, format: EagleFormat) -> None:
        super().__init__(format.layer, 0)
        config = format.layer
        _replace_projections(self, format, 2 * config.hidden_size)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = format.norm_before_residual

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_states: Tensor, *, embeddings: Tensor, **attention: Any
    ) -> Tensor:
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        hidden_states = residual + self.self_attn(both, **attention)[0]
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def _replace_projections(layer: LlamaDecoderLayer, format: EagleFormat, width: int) -> None:
    """Make the attention read `width` values, with the biases that the checkpoint has."""
    attention = layer.self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        out_features = getattr(attention, name).out_features
        setattr(attention, name, nn.Linear(width, out_features, bias=format.qkv_bias))
    inner = attention.o_proj
    attention.o_proj = nn.Linear(inner.in_features, inner.out_features, bias=format.o_bias)
