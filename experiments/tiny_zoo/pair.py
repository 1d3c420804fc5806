"""The architectures of the zoo, and their export as Hugging Face folders."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vocabulary import END, END_OF_TEXT, MAX_LENGTH, VOCAB_SIZE

SHAPES: dict[str, dict[str, int | bool]] = {
    "target": {
        "num_hidden_layers": 8,
        "hidden_size": 320,
        "intermediate_size": 896,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    "draft": {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
SHAPES["deep"] = {
    "num_hidden_layers": 32,
    "hidden_size": 160,
    "intermediate_size": 448,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}
SHAPES["shallow"] = SHAPES["deep"] | {"num_hidden_layers": 8}  # `deep` grows from it
EMBEDDING_STD = {"target": 0.5, "draft": 0.1, "deep": 0.5, "shallow": 0.5}
HEAD_SCALE = 0.1


def build(name: str, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised model; `name` is a key of `SHAPES`.

    Blocks start as the identity on large embeddings; small ones would drown in what random
    attention adds. The head starts as the scaled embeddings, even untied: then one linear map
    copies every token, and need not be learnt token by token.
    """
    model = shaped(SHAPES[name], tokenizer)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD[name])
    if not model.config.tie_word_embeddings:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight * HEAD_SCALE)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def shaped(shape: Mapping[str, int | bool], tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a random model of a shape for the tokenizer of the pair."""
    end, begin = tokenizer.convert_tokens_to_ids(END), tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=begin,
        rms_norm_eps=1e-5,
        head_dim=32,
        use_cache=True,
        **shape,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=begin, eos_token_id=[end, begin], pad_token_id=begin, do_sample=False
    )
    return model


def grow(model: LlamaForCausalLM, shallow: LlamaForCausalLM) -> None:
    """Give a fresh model the function of a shallower one, whose layers are spread over its depth.

    The layers between them start as the identity, as `build` left them.
    """
    every, rest = divmod(len(model.model.layers), len(shallow.model.layers))
    if rest:
        raise ValueError(
            f"{len(shallow.model.layers)} layers cannot be spread evenly over "
            f"{len(model.model.layers)}; take a divisor"
        )
    model.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(shallow.model.norm.state_dict())
    model.lm_head.load_state_dict(shallow.lm_head.state_dict())
    for index, layer in enumerate(shallow.model.layers):
        model.model.layers[every * index].load_state_dict(layer.state_dict())


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write half-precision weights, config and tokenizer, and replace `folder` at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    halved = LlamaForCausalLM(model.config)
    halved.load_state_dict(model.state_dict())
    halved.generation_config = model.generation_config
    halved.to(torch.float16).save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    fresh.chmod(0o755)
    for file in fresh.iterdir():
        file.chmod(0o644)
    if folder.exists():
        old = fresh.with_name(f"{fresh.name}.old")
        os.rename(folder, old)
        os.rename(fresh, folder)
        shutil.rmtree(old)
    else:
        os.rename(fresh, folder)
