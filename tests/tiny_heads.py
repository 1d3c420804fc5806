"""Random EAGLE heads of every kind, with weights so large that a lost flag or tensor shows."""

import copy
from typing import Any

import torch
from tiny_models import VOCAB, build
from torch import Tensor
from transformers import LlamaConfig

from specresearch import CausalLM
from specresearch.models.eagle import EagleModel
from specresearch.models.eagle_format import FORMATS
from specresearch.models.eagle_head import EagleHead

H, LAYERS, D = 16, 6, 9
BASE = "acme/base-8b"
TARGET = CausalLM(build("llama", seed=1, num_hidden_layers=LAYERS), max_len=40, name=BASE)
WIDE = CausalLM(
    build("llama", seed=1, num_hidden_layers=LAYERS, hidden_size=24), max_len=40, name=BASE
)
TOKENS = torch.tensor([[3, 14, 1, 5, 9, 2, 6, 5]])
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

EAGLE1: dict[str, dict[str, Any]] = {
    "plain": {},
    "fc_bias": {"fc_bias": True},
    "qkv_bias": {"qkv_bias": True},
    "scaled_rope": {"rope_parameters": LLAMA3_ROPE},
    "embedding": {"own_embedding": True},
}
EAGLE3: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole_vocabulary": {"draft_vocab_size": VOCAB},
    "outputs": {"layer_ids": (0, 2, 4), "id_convention": "outputs"},
    "norm_output": {"norm_output": True},
    "fc_norm": {"num_fc_norms": 3},
    "scaled_rope": {"rope_parameters": LLAMA3_ROPE},
    "embedding": {"own_embedding": True},
    "four_layers": {"layer_ids": (1, 2, 4, 6), "fc_width": 4 * H},
    "narrow": {"own_embedding": True, "fc_width": 3 * 24},
}
EAGLE3_MORE: dict[str, dict[str, Any]] = {
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "window": {"window": 3},
    "trained_embedding": {"own_embedding": True, "trains_embedding": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
}
EAGLE3_REST: dict[str, dict[str, Any]] = {
    "targets_lm_head": {"draft_vocab_size": None},
    "some_biases": {"qkv_bias": True, "fc_bias": True},
    "other_biases": {"o_bias": True},
    "unordered_layers": {"layer_ids": (5, 1, 1)},
    "embeddings_captured": {"layer_ids": (0, 2, 4)},
}


def eagle_head(version: int, **changes: Any) -> EagleHead:
    """Build a random head; `changes` are fields of EagleFormat or of its layer."""
    fields: dict[str, Any] = {"base_model": BASE, "fc_width": (2 if version == 1 else 3) * H}
    if version == 3:
        fields |= {"draft_vocab_size": D, "layer_ids": (1, 3, 5), "id_convention": "inputs"}
    fields |= changes
    layer: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    layer |= {key: fields.pop(key) for key in ("rope_parameters", "mlp_bias") if key in fields}
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=H,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **layer,
    )
    head = EagleHead.of(FORMATS[version](config, **fields)).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(
                1 + noise / 4 if parameter.dim() == 1 else noise * 1.5 / parameter.shape[-1] ** 0.5
            )
    if fields.get("draft_vocab_size") == D:
        head.target_ids = torch.tensor([1, 2, 4, 7, 8, 15, 16, 29, 30])
    return head


def target_of(head: EagleHead) -> CausalLM:
    return WIDE if head.format.fc_width == 3 * 24 else TARGET


def drafts(head: EagleHead, **layers: Any) -> Tensor:
    """Return logits after the target's features, and after a step on the head's own."""
    target = target_of(head)
    model = EagleModel(copy.deepcopy(head), target, **layers)
    model.reserve(1, 40)
    with torch.no_grad():
        features = model.fuse(target.forward_whole(TOKENS[:, :-1], model.captured_layers).hidden)
    logits, fed_back = model.extend((0,), TOKENS[:, 1:].tolist(), features)
    again, _ = model.extend((0,), [[4]], fed_back)
    return torch.cat([logits, again], dim=1)
