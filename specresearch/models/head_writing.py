"""Writes drafting heads in the published layouts, with their provenance beside them.

What readers have guessed differently is always stated: captured layers and how they are counted,
rotary settings in the style of transformers 4 and 5, and norms that are absent.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

from specresearch.models.eagle_format import LAYER_KEYS, Eagle3Format, EagleFormat
from specresearch.models.eagle_head import EagleHead
from specresearch.models.loading import OWN, ModelNotLoadedError, resolve
from specresearch.models.medusa import SAVED_NAME, MedusaHeads

EAGLE_NAME = "model.safetensors"


def save_medusa_heads(
    heads: MedusaHeads, folder: str | Path, provenance: Mapping[str, Any]
) -> None:
    """Write config.json and medusa_lm_head.safetensors, which `MedusaHeads.from_pretrained` reads.

    Args:
        provenance: How the heads were trained, in JSON types.
    """
    config = medusa_config(heads) | own_keys("medusa", provenance)
    write_head(folder, SAVED_NAME, config, tensors_of(heads))


def save_eagle_head(
    head: EagleHead,
    folder: str | Path,
    provenance: Mapping[str, Any],
    *,
    captured_layers: Sequence[int] | None = None,
) -> None:
    """Write config.json and model.safetensors, which `EagleHead.from_pretrained` reads.

    Args:
        provenance: How the head was trained, in JSON types.
        captured_layers: `EagleModel.captured_layers` of an EAGLE-3 head; needed unless its format
            names them.
    """
    format = stated_format(head, captured_layers)
    config = raw_eagle_config(format, head.fc.weight.dtype) | own_keys(format.proposer, provenance)
    write_head(folder, EAGLE_NAME, config, raw_eagle_tensors(head))


def read_provenance(checkpoint: str, *, revision: str | None = None) -> dict[str, Any]:
    """Return the provenance that a head was saved with; empty if others published it."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(resolve(checkpoint), revision=revision)
    except OSError as error:
        raise ModelNotLoadedError(
            f"the config.json of {checkpoint!r} cannot be read: {error}"
        ) from error
    return dict(config.get(OWN, {}).get("provenance", {}))


def own_keys(method: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what no published layout has a key for.

    Args:
        method: The proposer that drafts with the head.
    """
    captures = method == Eagle3Format.proposer
    convention = {"layer_id_convention": "inputs"} if captures else {}
    return {OWN: {"method": method, **convention, "provenance": dict(provenance)}}


def medusa_config(heads: MedusaHeads) -> dict[str, Any]:
    """Return the published keys; version 2 has no LM heads of its own."""
    reduced = {}
    if heads.target_ids is not None:
        reduced = {"truncated_vocab_size": len(heads.target_ids)}
    return {
        "medusa_num_heads": len(heads),
        "medusa_num_layers": heads.num_layers,
        "base_model_name_or_path": heads.base_model,
        "version": "1" if heads.vocab_size is not None else "2",
        **reduced,
    }


def stated_format(head: EagleHead, captured_layers: Sequence[int] | None = None) -> EagleFormat:
    """Return the format of what the module holds now, with captured layers as `inputs` ids.

    Raises:
        ValueError: If nothing says which layers an EAGLE-3 head captures.
    """
    format = replace(head.format, own_embedding=head.embed_tokens is not None)
    return format.stated(head.name, captured_layers)


def raw_eagle_config(format: EagleFormat, dtype: torch.dtype) -> dict[str, Any]:
    """Return the config that EAGLE's authors publish, with every flag written out.

    Args:
        format: A stated one, see `stated_format`.
    """
    config = {
        "architectures": [format.architecture],
        **layer_config(format, dtype),
        "base_model_name_or_path": format.base_model,
        **format.flags(),
    }
    if format.layer_ids is not None:
        config["num_aux_hidden_states"] = len(format.layer_ids)
    return config


def layer_config(format: EagleFormat, dtype: torch.dtype) -> dict[str, Any]:
    """Return the decoder layer as a Llama config of one layer."""
    layer, name = format.layer, str(dtype).removeprefix("torch.")
    config: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 1}
    for key in LAYER_KEYS:
        config[key] = getattr(layer, key)
    if format.qkv_bias and not format.o_bias:
        config["qkv_bias"] = True
    else:
        config["attention_bias"] = format.qkv_bias
    config["mlp_bias"] = layer.mlp_bias
    config |= _rope(layer.rope_parameters or {})
    if format.window is not None:
        config["sliding_window"] = format.window
        config["use_sliding_window"] = True
        config["layer_types"] = ["sliding_attention"]
    return config | {"tie_word_embeddings": False, "dtype": name, "torch_dtype": name}


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings as transformers 4 and 5 look for them."""
    scaling = dict(parameters)
    theta = scaling.pop("rope_theta")
    return {
        "rope_theta": theta,
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "rope_parameters": dict(parameters),
    }


def raw_eagle_tensors(head: EagleHead) -> dict[str, Tensor]:
    """Return the tensors under the names of EAGLE's authors, with the vocabulary map."""
    tensors: dict[str, Tensor] = {}
    for key, value in eagle_tensors(head).items():
        tensors[key.replace("layers.0.", head.format.layer_prefix, 1)] = value
    return tensors


def eagle_tensors(head: EagleHead) -> dict[str, Tensor]:
    """Return the head's tensors and, for a reduced vocabulary, the published map."""
    tensors = tensors_of(head)
    if head.target_ids is not None:
        tensors |= _vocabulary_map(head.target_ids.cpu(), head.format.layer.vocab_size)
    return tensors


def _vocabulary_map(target_ids: Int[Tensor, " D"], vocab_size: int) -> dict[str, Tensor]:
    """Return d2t, target id minus draft id, and t2d, which tokens of the target can be drafted."""
    known = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, target_ids, True)
    return {"d2t": target_ids - torch.arange(len(target_ids)), "t2d": known}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}


def write_head(
    folder: str | Path, name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the tensors, then the config; each file appears whole or not at all."""
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    part = path / f"{name}.part"
    save_file(dict(tensors), part, metadata={"format": "pt"})
    os.replace(part, path / name)
    part = path / "config.json.part"
    part.write_text(text, encoding="utf-8")
    os.replace(part, path / "config.json")
