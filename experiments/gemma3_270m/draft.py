"""Write an untrained draft LM with the target's tokenizer and a narrow copy of its embedding.

    python experiments/gemma3_270m/draft.py --target TARGET --prompts prompts.json --output DRAFT

A draft must know every token of its target, so nearly all weights of a small one are its embedding.
Here the embedding is the target's own, projected on the directions that matter most for tokens of
the prompts; it also serves as LM head.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

RARE = 0.01  # weight of a token that no prompt contains
STD = 0.04  # of the embedding


def narrow(embedding: Tensor, counts: Tensor, width: int) -> Tensor:
    """Project an embedding [V, H] on `width` directions, weighting tokens by their counts."""
    wide = embedding.double()
    weights = counts.double() + RARE
    scatter = wide.T @ (weights[:, None] * wide)
    directions = torch.linalg.eigh(scatter).eigenvectors[:, -width:]
    narrowed = wide @ directions
    spread = (weights[:, None] * narrowed.square()).sum() / (weights.sum() * width)
    return (narrowed * (STD / spread.sqrt())).float()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target: Any = AutoModelForCausalLM.from_pretrained(arguments.target)
    embedding = target.get_input_embeddings().weight.detach().float()
    counts = torch.zeros(len(embedding))
    for row in json.loads(arguments.prompts.read_text(encoding="utf-8")):
        token_ids = torch.tensor(tokenizer(row["prompt"])["input_ids"])
        counts += torch.bincount(token_ids, minlength=len(embedding))
    width = arguments.width
    config = LlamaConfig(
        vocab_size=len(embedding),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=width // 32,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=target.config.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    draft: Any = LlamaForCausalLM(config)
    draft.model.embed_tokens.weight.data.copy_(narrow(embedding, counts, width))
    draft.to(torch.bfloat16).save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    print(f"{draft.num_parameters():,} parameters in {arguments.output}")


if __name__ == "__main__":
    main()
