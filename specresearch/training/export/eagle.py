"""EAGLE heads in the layouts of vLLM, SGLang and speculators."""

import copy
from dataclasses import replace
from typing import Any

import torch

from specresearch.models.eagle_format import LAYER_IDS, EagleFormat, usual_layers
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_writing import (
    EAGLE_NAME,
    eagle_tensors,
    layer_config,
    raw_eagle_config,
    raw_eagle_tensors,
    stated_format,
)
from specresearch.training.export.contents import Contents, TargetConfig

SPECULATORS_VERSION = "0.9.0"
# Rope types that do not depend on the maximum position.
LENGTH_FREE = ("default", "linear", "llama3")


def eagle_contents(
    head: EagleHead, target: TargetConfig, layout: str, num_draft_tokens: int
) -> Contents:
    """Convert a head to a layout, unless the layout cannot express it."""
    version, layouts = head.format.version, head.format.layouts
    if layout not in layouts:
        raise ValueError(
            f"{head.name} is an EAGLE-{version} head; use format={' or '.join(layouts)}"
        )
    format = _complete_format(head, target)
    _check_expressible(head, layout, format)
    dtype = head.fc.weight.dtype
    if layout == "speculators":
        config = _speculators_config(format, dtype, target, num_draft_tokens)
        tensors = eagle_tensors(head)
    else:
        config = raw_eagle_config(format, dtype)
        tensors = raw_eagle_tensors(head)
    if layout == "eagle_sglang":
        # SGLang's fc always has a bias, and `bias` would add one to its attention, too.
        del config["bias"]
        config["architectures"] = ["LlamaForCausalLMEagle"]
        weight = tensors["fc.weight"]
        tensors.setdefault("fc.bias", weight.new_zeros(len(weight)))
    layer_ids = list(format.layer_ids or ())
    if layout == "eagle3":
        output_ids = [layer - 1 for layer in layer_ids]
        config["eagle_config"] = {"use_aux_hidden_state": True, LAYER_IDS: output_ids}
    reads = format.describe_inputs(layer_ids, target.num_layers)
    return Contents(
        config=config,
        tensors=tensors,
        weights_name=EAGLE_NAME,
        method=format.proposer,
        summary=f"EAGLE-{version} head of {target.name}, which reads {reads}, in {dtype}",
    )


def _complete_format(head: EagleHead, target: TargetConfig) -> EagleFormat:
    """Return a format with nothing left to a reader's defaults, and no shared embedding."""
    format = head.format
    num_layers, hidden_size = target.num_layers, target.hidden_size
    width = format.layer.hidden_size
    if width == hidden_size and not format.trains_embedding:
        head.embed_tokens = None
    default_ids = None
    if format.layer_ids is None:
        default_ids = usual_layers(num_layers)
    stated = stated_format(head, default_ids)
    layer_ids = list(stated.layer_ids or ())
    input_width = format.input_width(width, hidden_size, len(layer_ids))
    if format.layer.vocab_size != target.vocab_size or format.fc_width != input_width:
        raise ValueError(
            f"{head.name} is for {format.layer.vocab_size} tokens and reads {format.fc_width} "
            f"values; {target.name} has {target.vocab_size} and gives {input_width}; "
            "set base_model= to the model it was trained for"
        )
    if not all(0 <= layer <= num_layers for layer in layer_ids):
        raise ValueError(
            f"{head.name} captures the inputs of layers {layer_ids} and {target.name} has "
            f"{num_layers} layers; set the right ones in overrides={{{LAYER_IDS}: [...]}}"
        )
    if width != hidden_size and (head.embed_tokens is None or head.lm_head is None):
        raise ValueError(
            f"{head.name} is {width} wide and {target.name} {hidden_size}, so it needs an "
            "embedding and an LM head of its own"
        )
    layer = copy.deepcopy(format.layer)
    if (layer.rope_parameters or {}).get("rope_type") in LENGTH_FREE:
        layer.max_position_embeddings = max(layer.max_position_embeddings, target.max_len)
    return replace(stated, layer=layer, base_model=target.name)


def _check_expressible(head: EagleHead, layout: str, format: EagleFormat) -> None:
    unsupported = _unsupported(layout, format)
    if not unsupported:
        return
    remedy = ""
    if layout == "eagle3" and not _unsupported("speculators", format):
        remedy = "; use format=speculators"
    raise ValueError(
        f"format={layout} cannot express what {head.name} has or reads: "
        f"{', '.join(unsupported)}{remedy}"
    )


def _unsupported(layout: str, format: EagleFormat) -> list[str]:
    """Return the head's features that readers of the layout ignore."""
    layer_ids = list(format.layer_ids or ())
    features = {
        "a bias in fc": layout in ("eagle3", "speculators") and format.fc_bias,
        f"layers {layer_ids} (engines read each once, from low to high)": (
            layer_ids != sorted(set(layer_ids))
        ),
    }
    if layout in ("eagle3", "eagle_sglang"):
        features["biases of queries, keys and values"] = format.qkv_bias
    if layout == "speculators":
        features |= {
            "biases in some projections of its attention": format.qkv_bias != format.o_bias,
            "the target's LM head": format.draft_vocab_size is None,
        }
    else:
        features |= {
            "norm_before_residual": format.norm_before_residual,
            "norm_before_fc": format.norm_before_fc,
            "a sliding window": format.window is not None,
            "a trained embedding": format.trains_embedding,
            "a bias in o_proj": format.o_bias,
            "biases in its MLP": bool(format.layer.mlp_bias),
        }
    if layout == "eagle3":
        features["the input of layer 0"] = 0 in layer_ids
    return [feature for feature, is_present in features.items() if is_present]


def _speculators_config(
    format: EagleFormat, dtype: torch.dtype, target: TargetConfig, num_draft_tokens: int
) -> dict[str, Any]:
    """Return the config of the speculators library, which vLLM serves; ids are of layer inputs."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": num_draft_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        **format.flags(),
        "transformer_layer_config": layer_config(format, dtype),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target.name, "architectures": target.architectures},
        },
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
