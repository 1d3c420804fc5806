"""Drafting heads as files of our own: the published layouts, with where the weights come from beside them.

What readers have guessed differently is always stated: captured layers and how they are counted, rotary settings in the style
of transformers 4 and of 5, and the norms that are not there.
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

from specresearch.models.eagle_format import Eagle3Format, EagleFormat
from specresearch.models.eagle_head import EagleHead
from specresearch.models.loading import OWN, ModelNotLoadedError, resolve
from specresearch.models.medusa import SAVED_NAME, MedusaHeads

EAGLE_NAME = "model.safetensors"


def save_medusa_heads(
    heads: MedusaHeads, folder: str | Path, provenance: Mapping[str, Any]
) -> None:
    """Write config.json and medusa_lm_head.safetensors, which `MedusaHeads.from_pretrained` reads.

    provenance: how the heads were trained, of JSON types.
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

    captured_layers: of an EAGLE-3 head, `EagleModel.captured_layers`; needed unless its format names them. provenance: how the
    head was trained, of JSON types. Raises ValueError where nothing says which layers the head captures.
    """
    format = stated_format(head, captured_layers)
    config = raw_eagle_config(format, head.fc.weight.dtype) | own_keys(format.proposer, provenance)
    write_head(folder, EAGLE_NAME, config, raw_eagle_tensors(head))


def read_provenance(checkpoint: str, *, revision: str | None = None) -> dict[str, Any]:
    """What was given as provenance when the head was saved here; empty for heads of others."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(resolve(checkpoint), revision=revision)
    except OSError as error:
        raise ModelNotLoadedError(
            f"the config.json of {checkpoint!r} cannot be read: {error}"
        ) from error
    return dict(config.get(OWN, {}).get("provenance", {}))


def own_keys(method: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What no published layout has a place for. method: the proposer that drafts with the head."""
    convention = {"layer_id_convention": "inputs"} if method == Eagle3Format.proposer else {}
    return {OWN: {"method": method, **convention, "provenance": dict(provenance)}}


def medusa_config(heads: MedusaHeads) -> dict[str, Any]:
    """The published keys; version 2 has no LM heads of its own."""
    return {
        "medusa_num_heads": len(heads),
        "medusa_num_layers": heads.num_layers,
        "base_model_name_or_path": heads.base_model,
        "version": "1" if heads.vocab_size is not None else "2",
    }


def stated_format(head: EagleHead, captured_layers: Sequence[int] | None = None) -> EagleFormat:
    """The head's format with what its module holds now, and with its captured layers as `inputs` ids.

    Raises ValueError where nothing says which layers an EAGLE-3 head captures.
    """
    format = replace(head.format, own_embedding=head.embed_tokens is not None)
    return format.stated(head.name, captured_layers)


def raw_eagle_config(format: EagleFormat, dtype: torch.dtype) -> dict[str, Any]:
    """Of the layouts that EAGLE's authors publish, with every flag written out. format: a stated one."""
    return {
        "architectures": [format.architecture],
        **layer_config(format, dtype),
        "base_model_name_or_path": format.base_model,
        **format.raw_flags(),
    }


def layer_config(format: EagleFormat, dtype: torch.dtype) -> dict[str, Any]:
    """The decoder layer as a Llama config of one layer."""
    layer, name = format.layer, str(dtype).removeprefix("torch.")
    same = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    same += ("hidden_act", "rms_norm_eps", "max_position_embeddings")
    biases = (
        {"qkv_bias": True}
        if format.qkv_bias and not format.o_bias
        else {"attention_bias": format.qkv_bias}
    )
    window = {
        "sliding_window": format.window,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"],
    }
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        **{key: getattr(layer, key) for key in same},
        **biases,
        "mlp_bias": layer.mlp_bias,
        **_rope(layer.rope_parameters or {}),
        **({} if format.window is None else window),
        "tie_word_embeddings": False,
        "dtype": name,
        "torch_dtype": name,
    }


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings as transformers 4 and 5 look for them."""
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return {
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "rope_parameters": dict(parameters),
    }


def raw_eagle_tensors(head: EagleHead) -> dict[str, Tensor]:
    """Under the names of EAGLE's authors, with the vocabulary map."""
    prefix = head.format.layer_prefix
    return {
        key.replace("layers.0.", prefix, 1): value for key, value in eagle_tensors(head).items()
    }


def eagle_tensors(head: EagleHead) -> dict[str, Tensor]:
    """The head's tensors and, of a reduced vocabulary, the published map."""
    ids = head.target_ids
    return tensors_of(head) | (
        {} if ids is None else _vocabulary_map(ids.cpu(), head.format.layer.vocab_size)
    )


def _vocabulary_map(target_ids: Int[Tensor, " D"], vocab_size: int) -> dict[str, Tensor]:
    """d2t: target id less draft id, of every draft id. t2d: which tokens of the target can be drafted."""
    known = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, target_ids, True)
    return {"d2t": target_ids - torch.arange(len(target_ids)), "t2d": known}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}


def write_head(
    folder: str | Path, name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Two files, the tensors first and each whole or not at all."""
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    part = path / f"{name}.part"
    save_file(dict(tensors), part, metadata={"format": "pt"})
    os.replace(part, path / name)
    part = path / "config.json.part"
    part.write_text(text, encoding="utf-8")
    os.replace(part, path / "config.json")
