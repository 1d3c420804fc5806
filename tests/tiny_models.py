"""Tiny random models whose weights are so large that a wrong position or mask shows."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import tokenizers
import torch
import transformers as hf
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

VOCAB = 31
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_MIXED = ["sliding_attention", "full_attention"]
NEED_EAGER = frozenset({"gemma2", "gpt_oss", "gptj"})
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}


def config_of(architecture: str, **changes: Any) -> PreTrainedConfig:
    """Return the configuration of a tiny model, by its name in `ARCHITECTURES`."""
    architecture_class, overrides = ARCHITECTURES[architecture]
    has_gpt_names = "n_embd" in overrides or "word_embed_proj_dim" in overrides
    defaults = _GPT if has_gpt_names else _BASE
    return architecture_class(**defaults | overrides | changes)


ARCHITECTURES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, {}),
    "llama3_rope": (hf.LlamaConfig, {"rope_parameters": _LLAMA3_ROPE}),
    "qwen2": (hf.Qwen2Config, {}),
    "qwen2_sliding": (
        hf.Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": (hf.Qwen3Config, {"head_dim": 8}),
    "olmo2": (hf.Olmo2Config, {}),
    "phi3": (hf.Phi3Config, {}),
    "granite": (
        hf.GraniteConfig,
        {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.7},
    ),
    "smollm3": (hf.SmolLM3Config, {"no_rope_layers": [1, 0]}),
    "smollm3_sliding": (
        hf.SmolLM3Config,
        {
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": _MIXED,
        },
    ),
    "mistral": (hf.MistralConfig, {"sliding_window": 5}),
    "mixtral": (hf.MixtralConfig, {"num_local_experts": 4, "sliding_window": None}),
    "qwen3_moe": (hf.Qwen3MoeConfig, _EXPERTS | {"head_dim": 8}),
    "deepseek_v3": (
        hf.DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 12,
            "first_k_dense_replace": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 5,
        },
    ),
    "gemma2": (
        hf.Gemma2Config,
        {
            "head_dim": 8,
            "sliding_window": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (hf.Gemma3TextConfig, {"head_dim": 8, "sliding_window": 5, "layer_types": _MIXED}),
    "gpt_oss": (
        hf.GptOssConfig,
        {
            "head_dim": 8,
            "sliding_window": 5,
            "layer_types": _MIXED,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": _LLAMA3_ROPE,
        },
    ),
    "gpt2": (hf.GPT2Config, {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": (hf.GPTNeoXConfig, {"rotary_pct": 0.5, "use_parallel_residual": True}),
    "opt": (
        hf.OPTConfig,
        {
            "hidden_size": 16,
            "word_embed_proj_dim": 16,
            "ffn_dim": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "falcon": (
        hf.FalconConfig,
        {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "olmo3": (hf.Olmo3Config, {"sliding_window": 5, "layer_types": _MIXED}),
    "cohere2": (
        hf.Cohere2Config,
        {"head_dim": 8, "sliding_window": 5, "layer_types": _MIXED, "logit_scale": 0.5},
    ),
    "glm4": (hf.Glm4Config, {"head_dim": 8}),
    "gptj": (
        hf.GPTJConfig,
        {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    ),
}


def build(
    architecture: str = "llama",
    *,
    seed: int = 0,
    attention: str | None = None,
    dtype: torch.dtype = torch.float64,
    spread: float = 1.5,
    **changes: Any,
) -> PreTrainedModel:
    """Build a random model, by default in float64 with the library's own exact attention.

    Args:
        spread: Standard deviation of a matrix product's output.
    """
    config = config_of(architecture, **changes)
    attention = attention or ("eager" if architecture in NEED_EAGER else "sdpa")
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, experts_implementation="eager"
    )
    model = model.to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(_normal(parameter, generator) * spread / parameter.shape[-1] ** 0.5)
            elif name.endswith(("bias", "sinks")):
                parameter.copy_(_normal(parameter, generator) * 0.3)
    return model.eval()


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


@cache
def letters_tokenizer(num_tokens: int = VOCAB) -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer of one or two letters per token, so that strings straddle tokens."""
    pairs = [(x, y) for x in "abcdef" for y in "abcdef"][: num_tokens - 6]
    vocab = {word: i for i, word in enumerate([*"abcdef", *(x + y for x, y in pairs)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=pairs))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def letters(token_ids: Sequence[int]) -> str:
    """Return the text of the tokens under `letters_tokenizer`."""
    return str(letters_tokenizer().decode(list(token_ids)))
