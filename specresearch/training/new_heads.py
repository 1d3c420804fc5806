"""Drafters that have not learnt anything yet, made to fit a target."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from specresearch.models import CausalLM
from specresearch.models.eagle_format import EagleFormat
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_fit import lm_head_of
from specresearch.models.medusa import MedusaHeads
from specresearch.training.examples import Example


def new_medusa_heads(
    target: CausalLM, num_heads: int, num_layers: int, own_lm_head: bool
) -> MedusaHeads:
    """Heads that say at first what the target says. own_lm_head: each has a copy of the target's LM head, to be trained."""
    lm_head = lm_head_of(target)
    vocab_size = target.vocab_size if own_lm_head else None
    heads = MedusaHeads(
        lm_head.in_features, vocab_size, num_heads, num_layers, base_model=target.name
    )
    if own_lm_head:
        for head in heads:
            head[-1].weight.data.copy_(lm_head.weight)  # pyright: ignore[reportIndexIssue]
    return heads


def new_eagle_head(
    target: CausalLM,
    kind: type[EagleFormat],
    layer_ids: tuple[int, ...],
    target_ids: Int[Tensor, " D"] | None = None,
    seed: int = 0,
) -> EagleHead:
    """A random head with a layer of the target's own proportions.

    layer_ids: target layers whose inputs an EAGLE-3 head captures. target_ids: the tokens it drafts; None: all of them.
    """
    layer, width = _layer_like(target), lm_head_of(target).in_features
    num_drafts = target.vocab_size if target_ids is None else len(target_ids)
    format = kind.new(layer, width, layer_ids, num_drafts, base_model=target.name)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        head = EagleHead.of(format)
    if head.lm_head is not None:
        rows = lm_head_of(target).weight.detach()
        head.lm_head.weight.data.copy_(rows if target_ids is None else rows[target_ids])
    head.target_ids = target_ids
    return head


def forget_weights(model: PreTrainedModel, seed: int = 0) -> None:
    """Give a model the random weights that its class begins with."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    model.load_state_dict(fresh.state_dict())


def _layer_like(target: CausalLM) -> LlamaConfig:
    config: Any = target.model.config.get_text_config(decoder=True)
    num_heads = config.num_attention_heads
    own: dict[str, Any] = {
        name: value
        for name in (
            "intermediate_size",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "rope_parameters",
        )
        if (value := getattr(config, name, None)) is not None
    }
    rope = own.get("rope_parameters", {})
    if "full_attention" in rope:  # one set for each kind of layer
        own["rope_parameters"] = rope["full_attention"]
    return LlamaConfig(
        **{"intermediate_size": 4 * config.hidden_size, "num_key_value_heads": num_heads} | own,
        hidden_size=config.hidden_size,
        num_attention_heads=num_heads,
        num_hidden_layers=1,
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_len,
        tie_word_embeddings=False,
    )


def most_frequent(
    examples: Iterable[Example], num_tokens: int, vocab_size: int
) -> Int[Tensor, " D"]:
    """The `num_tokens` ids that are to be predicted most often, in ascending order; ties go to the lower id."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for example in examples:
        wanted = torch.tensor(example.token_ids)[torch.tensor(example.loss_mask)]
        counts += torch.bincount(wanted, minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:num_tokens].sort().values
