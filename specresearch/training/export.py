"""Trained heads in the layouts that serving engines read; what a layout cannot say is refused, not left out."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from specresearch.models.eagle_format import LAYER_IDS, EagleFormat, usual_layers
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_writing import (
    EAGLE_NAME,
    eagle_tensors,
    layer_config,
    medusa_config,
    own_keys,
    raw_eagle_config,
    raw_eagle_tensors,
    read_provenance,
    stated_format,
    tensors_of,
    write_head,
)
from specresearch.models.loading import DTYPES, ModelNotLoadedError, resolve
from specresearch.models.medusa import SAVED_NAME, MedusaHeads

LAYOUTS = ("eagle", "eagle_sglang", "eagle3", "speculators", "medusa")
PICKLED_NAME = "medusa_lm_head.pt"
SPECULATORS_VERSION = "0.9.0"
AnyModule = TypeVar("AnyModule", bound=nn.Module)
LENGTH_FREE = (
    "default",
    "linear",
    "llama3",
)  # kinds of rope that the longest position does not change


@dataclass(frozen=True)
class TargetConfig:
    """What an export needs to know of the target; its weights are not read.

    name: as other programs find it, a folder or a hub id. max_len: its longest position, 0 where it does not say.
    """

    name: str
    architectures: list[str]
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_len: int

    @staticmethod
    def read(model: str | None) -> "TargetConfig":
        """From the config.json of a folder, hub id or zoo name. Raises ModelNotLoadedError when there is none."""
        if not model:
            raise ModelNotLoadedError(
                "the head names no target; set base_model= to its folder or hub id"
            )
        place = resolve(model)
        try:
            config = AutoConfig.from_pretrained(place)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelNotLoadedError(
                f"the config.json of the target {model!r} cannot be read: {reason}; set base_model= to one that can"
            ) from error
        text = config.get_text_config()
        return TargetConfig(
            str(Path(place).resolve()) if Path(place).is_dir() else place,
            list(config.architectures or ()),
            text.num_hidden_layers,
            text.hidden_size,
            text.vocab_size,
            getattr(text, "max_position_embeddings", 0),
        )


@dataclass(frozen=True)
class Contents:
    """What is written. weights_name: of the file that holds the tensors. method: the proposer that drafts with them."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    weights_name: str
    method: str
    summary: str


def export_head(
    head: str,
    format: str,
    output: str | Path,
    *,
    base_model: str | None = None,
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    num_draft_tokens: int = 5,
    pickle: bool = False,
) -> str:
    """Write a head as one of `LAYOUTS` and return a line about what was written.

    head: folder, hub id or zoo name. base_model: the target it was trained for, None for the one that its config names; only
    its config.json is read. overrides: keys of an EAGLE head's config to replace. dtype: of the weights, None as they are.
    num_draft_tokens: what the speculators layout proposes to vLLM. pickle: write medusa_lm_head.pt too.
    Raises ValueError where head, target and layout do not go together.
    """
    folder = Path(output)
    if format not in LAYOUTS:
        raise ValueError(f"format={format!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    if num_draft_tokens < 1:
        raise ValueError(f"num_draft_tokens={num_draft_tokens} must be at least 1")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"output={folder} is not an empty folder; choose another")
    if format == "medusa" and overrides:
        raise ValueError(
            f"overrides={dict(overrides)} are for EAGLE heads; Medusa heads are read by their tensors alone"
        )
    if format != "medusa" and pickle:
        raise ValueError(f"pickle=true is for format=medusa; format={format} is safetensors alone")
    if format == "medusa":
        heads = _cast(MedusaHeads.from_pretrained(head, revision=revision), dtype)
        contents = _medusa(heads, head, TargetConfig.read(base_model or heads.base_model))
    else:
        loaded = _cast(
            EagleHead.from_pretrained(head, revision=revision, overrides=overrides), dtype
        )
        contents = _eagle(
            loaded,
            TargetConfig.read(base_model or loaded.format.base_model),
            format,
            num_draft_tokens,
        )
    provenance = read_provenance(head, revision=revision)
    write_head(
        folder,
        contents.weights_name,
        contents.config | own_keys(contents.method, provenance),
        contents.tensors,
    )
    if pickle:
        torch.save(contents.tensors, folder / PICKLED_NAME)
    return f"wrote {folder}: {contents.summary}"


def _cast(module: AnyModule, dtype: str | None) -> AnyModule:
    return module if dtype is None else module.to(DTYPES[dtype])


def _medusa(heads: MedusaHeads, name: str, target: TargetConfig) -> Contents:
    if heads.hidden_size != target.hidden_size or heads.vocab_size not in (None, target.vocab_size):
        raise ValueError(
            f"{name} is for hidden states of {heads.hidden_size} and {heads.vocab_size or 'any number of'} tokens, and "
            f"{target.name} has {target.hidden_size} and {target.vocab_size}; set base_model= to the model it was trained for"
        )
    if heads.vocab_size is None and heads.num_layers != 1:
        raise ValueError(
            f"{name} has {heads.num_layers} layers a head and no LM heads; format=medusa without LM heads (version 2) has 1 layer"
        )
    heads.base_model = target.name
    tensors = tensors_of(heads)
    summary = f"{len(heads)} Medusa heads of {target.name}, in {tensors['0.0.linear.weight'].dtype}"
    return Contents(medusa_config(heads), tensors, SAVED_NAME, "medusa", summary)


def _eagle(head: EagleHead, target: TargetConfig, layout: str, num_draft_tokens: int) -> Contents:
    kind = head.format
    if layout not in kind.layouts:
        right = " or ".join(kind.layouts)
        raise ValueError(f"{head.name} is an EAGLE-{kind.version} head; use format={right}")
    format = _format_for(head, target)
    lacking = _lacking(layout, format)
    if lacking:
        remedy = (
            "; use format=speculators"
            if layout == "eagle3" and not _lacking("speculators", format)
            else ""
        )
        raise ValueError(
            f"format={layout} has no place for what {head.name} has or reads: {', '.join(lacking)}{remedy}"
        )
    dtype = head.fc.weight.dtype
    if layout == "speculators":
        config, tensors = (
            _speculators_config(format, dtype, target, num_draft_tokens),
            eagle_tensors(head),
        )
    else:
        config, tensors = raw_eagle_config(format, dtype), raw_eagle_tensors(head)
    if (
        layout == "eagle_sglang"
    ):  # its fc has a bias in any case, and `bias` would give one to its attention too
        del config["bias"]
        config["architectures"] = ["LlamaForCausalLMEagle"]
        tensors.setdefault("fc.bias", tensors["fc.weight"].new_zeros(len(tensors["fc.weight"])))
    if layout == "eagle3":
        config["eagle_config"] = {
            "use_aux_hidden_state": True,
            LAYER_IDS: [k - 1 for k in format.layer_ids or ()],
        }
    reads = format.describe_inputs(format.layer_ids or (), target.num_layers)
    summary = f"EAGLE-{kind.version} head of {target.name}, which reads {reads}, in {dtype}"
    return Contents(config, tensors, EAGLE_NAME, kind.proposer, summary)


def _format_for(head: EagleHead, target: TargetConfig) -> EagleFormat:
    """What the head is beside this target: nothing left to a reader's defaults, and no embedding that it shares.

    Raises ValueError when they do not fit.
    """
    format, num_layers = head.format, target.num_layers
    is_as_wide = format.layer.hidden_size == target.hidden_size
    if is_as_wide and not format.trains_embedding:
        head.embed_tokens = None
    default = None
    if format.layer_ids is None:
        default = usual_layers(num_layers)
    stated = stated_format(head, default)
    ids = list(stated.layer_ids or ())
    reads = format.input_width(format.layer.hidden_size, target.hidden_size, len(ids))
    if format.layer.vocab_size != target.vocab_size or format.fc_width != reads:
        raise ValueError(
            f"{head.name} is for {format.layer.vocab_size} tokens and reads {format.fc_width} values; {target.name} has "
            f"{target.vocab_size} and gives {reads}; set base_model= to the model it was trained for"
        )
    if not all(0 <= k <= num_layers for k in ids):
        raise ValueError(
            f"{head.name} captures the inputs of layers {ids} and {target.name} has {num_layers} layers; set the right ones in "
            f"overrides={{{LAYER_IDS}: [...]}}"
        )
    if not is_as_wide and (head.embed_tokens is None or head.lm_head is None):
        raise ValueError(
            f"{head.name} is {format.layer.hidden_size} wide and {target.name} {target.hidden_size}, so it needs an embedding "
            "and an LM head of its own"
        )
    layer = copy.deepcopy(format.layer)
    if (layer.rope_parameters or {}).get("rope_type") in LENGTH_FREE:
        layer.max_position_embeddings = max(layer.max_position_embeddings, target.max_len)
    return replace(stated, layer=layer, base_model=target.name)


def _lacking(layout: str, format: EagleFormat) -> list[str]:
    """What the head has and readers of the layout do not look for."""
    is_raw, ids = layout != "speculators", list(format.layer_ids or ())
    there = {
        "norm_before_residual": is_raw and format.norm_before_residual,
        "norm_before_fc": is_raw and format.norm_before_fc,
        "a sliding window": is_raw and format.window is not None,
        "a trained embedding": is_raw and format.trains_embedding,
        "a bias in fc": layout in ("eagle3", "speculators") and format.fc_bias,
        "biases of queries, keys and values": layout in ("eagle3", "eagle_sglang")
        and format.qkv_bias,
        "biases in some projections of its attention": not is_raw
        and format.qkv_bias != format.o_bias,
        "a bias in o_proj": is_raw and format.o_bias,
        "biases in its MLP": is_raw and bool(format.layer.mlp_bias),
        "the target's LM head": layout == "speculators" and format.draft_vocab_size is None,
        "the input of layer 0": layout == "eagle3" and 0 in ids,
        f"layers {ids} (engines read each once, from low to high)": ids != sorted(set(ids)),
    }
    return [thing for thing, is_there in there.items() if is_there]


def _speculators_config(
    format: EagleFormat, dtype: torch.dtype, target: TargetConfig, num_draft_tokens: int
) -> dict[str, Any]:
    """Of the speculators library, which vLLM serves. Ids are those of layer inputs."""
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
