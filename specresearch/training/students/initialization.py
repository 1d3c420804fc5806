"""Untrained drafters that fit a target."""

import copy
from collections.abc import Iterable

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from specresearch.models import CausalLM
from specresearch.models.eagle_format import EagleFormat, layer_like
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_fit import lm_head_of
from specresearch.models.medusa import MedusaHeads
from specresearch.training.corpus.examples import Example


def new_medusa_heads(
    target: CausalLM,
    num_heads: int,
    num_layers: int,
    own_lm_head: bool,
    target_ids: Int[Tensor, " D"] | None = None,
) -> MedusaHeads:
    """Return heads that predict what the target predicts, each with an LM head if asked.

    LM heads of their own cover `target_ids`, or all tokens.
    """
    lm_head = lm_head_of(target)
    rows = lm_head.weight.detach()
    if target_ids is not None:
        rows = rows[target_ids]
    heads = MedusaHeads(
        lm_head.in_features,
        len(rows) if own_lm_head else None,
        num_heads,
        num_layers,
        base_model=target.name,
        target_ids=target_ids,
    )
    if own_lm_head:
        for head in heads:
            head[-1].weight.data.copy_(rows)  # pyright: ignore[reportIndexIssue]
    return heads


def new_eagle_head(
    target: CausalLM,
    kind: type[EagleFormat],
    layer_ids: tuple[int, ...],
    target_ids: Int[Tensor, " D"] | None = None,
    seed: int = 0,
) -> EagleHead:
    """Return a random head whose layer has the target's proportions.

    An EAGLE-3 head captures the inputs of `layer_ids` and drafts `target_ids`, or all tokens.
    """
    layer = layer_like(target.model.config, target.vocab_size, target.max_len)
    lm_head = lm_head_of(target)
    width = lm_head.in_features
    num_drafts = target.vocab_size if target_ids is None else len(target_ids)
    format = kind.new(layer, width, layer_ids, num_drafts, base_model=target.name)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        head = EagleHead.of(format)
    if head.lm_head is not None:
        rows = lm_head.weight.detach()
        head.lm_head.weight.data.copy_(rows if target_ids is None else rows[target_ids])
    head.target_ids = target_ids
    return head


def reset_weights(model: PreTrainedModel, seed: int = 0) -> None:
    """Replace a model's weights by its class's random initialisation."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    model.load_state_dict(fresh.state_dict())


def most_frequent(
    examples: Iterable[Example], num_tokens: int, vocab_size: int
) -> Int[Tensor, " D"]:
    """Return the ids predicted most often, in ascending order; lower ids win ties."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for example in examples:
        predicted = torch.tensor(example.token_ids)[torch.tensor(example.loss_mask)]
        counts += torch.bincount(predicted, minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:num_tokens].sort().values
