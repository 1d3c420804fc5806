"""Reads EAGLE heads as their authors published them, and brings every layout into one form.

Anything missing, unexpected or contradictory is an error that names the key: a head that is loaded
slightly wrong still drafts, only badly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig

from specresearch.models.eagle_format import (
    LAYER_IDS,
    LAYER_KEYS,
    Eagle1Format,
    Eagle3Format,
    EagleFormat,
)
from specresearch.models.head_files import read_head
from specresearch.models.loading import ModelNotLoadedError
from specresearch.models.random_weights import Weights, name_of

Config = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
SUPPORTED = {
    "speculators_model_type": "eagle3",
    "num_hidden_layers": 1,
    "use_aux_hidden_state": True,
}
KEYS = {
    "bias",
    "draft_vocab_size",
    "embed_requires_grad",
    "fc_norm",
    "layer_types",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "target_hidden_size",
    "tie_word_embeddings",
    "use_sliding_window",
}
REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
EAGLE3_KEYS = ("midlayer.", "layers.0.hidden_norm.", "d2t")
BIASES = {
    "qkv_bias": "layers.0.self_attn.q_proj.bias",
    "attention_bias": "layers.0.self_attn.q_proj.bias",
    "mlp_bias": "layers.0.mlp.up_proj.bias",
}


@dataclass(frozen=True)
class EagleFiles:
    """A checkpoint in the form that every layout is brought into.

    Attributes:
        tensors: Under one set of names.
        target_ids: The target's id of every draft id; None if they are the same.
    """

    name: str
    format: EagleFormat
    tensors: dict[str, Tensor]
    target_ids: Int[Tensor, " D"] | None = None


def read_eagle(
    checkpoint: str,
    *,
    revision: str | None = None,
    overrides: Config | None = None,
    weights: Weights = "trained",
) -> EagleFiles:
    """Read an EAGLE-1, EAGLE-2 or EAGLE-3 checkpoint, raw or in the speculators library's layout.

    Args:
        overrides: Replace keys of its config, such as `rope_theta`.
        weights: `random` is explained at `read_head`.

    Raises:
        ModelNotLoadedError: Names the key that is wrong.
    """
    files = read_head(checkpoint, revision=revision, values=weights)
    name, overrides = name_of(files.name, weights), dict(overrides or {})
    _check_overrides(name, files.config, overrides)
    config = _flatten(files.config, overrides)
    tensors: dict[str, Tensor] = {}
    for key, value in files.tensors.items():
        if not key.startswith("verifier_") and not key.endswith("rotary_emb.inv_freq"):
            tensors[key.replace("midlayer.", "layers.0.", 1)] = value
    is_eagle3 = any(key.startswith(EAGLE3_KEYS) for key in files.tensors)
    _check_supported(name, config, tensors)
    _check_biases(name, config, tensors, BIASES if is_eagle3 else BIASES | {"bias": "fc.bias"})
    fields: dict[str, Any] = {
        "layer": _layer(name, config, tensors),
        "fc_width": tensors["fc.weight"].shape[1],
        "fc_bias": "fc.bias" in tensors,
        "qkv_bias": "layers.0.self_attn.q_proj.bias" in tensors,
        "o_bias": "layers.0.self_attn.o_proj.bias" in tensors,
        "own_embedding": "embed_tokens.weight" in tensors,
        "trains_embedding": bool(config.get("embed_requires_grad", False)),
        "window": _window(config),
        "base_model": _base_model(files.config),
    }
    if not is_eagle3:
        return EagleFiles(name, Eagle1Format(**fields), tensors)
    fields["draft_vocab_size"] = _draft_vocab_size(name, config, tensors)
    target_ids = _pop_target_ids(name, tensors, config["vocab_size"])
    if config.get("fc_norm"):
        fields["num_fc_norms"] = sum(key.startswith("fc_norm.") for key in tensors)
    for flag in ("norm_before_fc", "norm_before_residual", "norm_output"):
        fields[flag] = bool(config.get(flag, False))
    fields["target_hidden_size"] = config.get("target_hidden_size")
    fields["layer_ids"], fields["id_convention"] = _layer_ids(name, files.config, overrides)
    return EagleFiles(name, Eagle3Format(**fields), tensors, target_ids)


def _check_overrides(name: str, config: Config, overrides: Config) -> None:
    """Raise for a key that neither the head's config has nor this module reads."""
    known = {*config, *KEYS, *SUPPORTED, *REQUIRED, *LAYER_KEYS, *BIASES, LAYER_IDS}
    for part in ("eagle_config", "transformer_layer_config"):
        known |= set(config.get(part) or {})
    for key in overrides:
        if key not in known:
            similar = get_close_matches(key, known, n=1)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            raise ModelNotLoadedError(f"{name!r}: overrides hold {key!r}, which is unknown{meant}")


def _check_supported(name: str, config: Config, tensors: Tensors) -> None:
    if "fc.weight" not in tensors or tensors["fc.weight"].dim() != 2:
        raise ModelNotLoadedError(
            f"{name!r} has no matrix fc.weight, so it is no EAGLE head; name the folder or hub id "
            "of one"
        )
    for key, supported in SUPPORTED.items():
        if config.get(key, supported) != supported:
            raise ModelNotLoadedError(
                f"{name!r}: {key}={config[key]!r} is not supported; only {supported!r} is"
            )
    if config.get("fc_norm") and config.get("norm_before_fc"):
        raise ModelNotLoadedError(
            f"{name!r}: fc_norm and norm_before_fc are both set; set one false in "
            "proposer.overrides"
        )


def _flatten(raw: Config, overrides: Config) -> dict[str, Any]:
    """Merge the levels where layouts keep the flags and the layer's shape."""
    config: dict[str, Any] = {}
    for part in (raw.get("eagle_config"), raw.get("transformer_layer_config"), raw, overrides):
        config.update(part or {})
    if "rope_theta" in overrides:
        for key in {"rope_parameters", "rope_scaling"} - overrides.keys():
            config[key] = dict(config.get(key) or {})
            config[key].pop("rope_theta", None)
    return config


def _check_biases(name: str, config: Config, tensors: Tensors, biases: Mapping[str, str]) -> None:
    """Raise where the config states a bias that the file lacks, or denies one that it has."""
    for key, tensor in biases.items():
        stated = config.get(key)
        if stated is not None and bool(stated) != (tensor in tensors):
            raise ModelNotLoadedError(
                f"{name!r}: its config says {key}={stated} and {tensor} is "
                f"{'there' if tensor in tensors else 'missing'}; if the file is right, set "
                f"proposer.overrides={{{key}: {str(not stated).lower()}}}"
            )


def _layer(name: str, config: Config, tensors: Tensors) -> LlamaConfig:
    for key in REQUIRED:
        if config.get(key) is None:
            raise ModelNotLoadedError(
                f"{name!r}: its config lacks {key}; set it in proposer.overrides"
            )
    stated = {key: config[key] for key in LAYER_KEYS if config.get(key) is not None}
    return LlamaConfig(
        **stated,
        num_hidden_layers=1,
        mlp_bias=BIASES["mlp_bias"] in tensors,
        rope_parameters=_rope(name, config),
        tie_word_embeddings=False,
    )


def _rope(name: str, config: Config) -> dict[str, Any]:
    """Merge the rotary settings of transformers 4 and 5; raise where they contradict each other."""
    scaling, parameters = (
        dict(config.get(key) or {}) for key in ("rope_scaling", "rope_parameters")
    )
    for part in (scaling, parameters):
        if "type" in part:
            part.setdefault("rope_type", part.pop("type"))
    rope = {"rope_type": "default", "rope_theta": 10000.0, **scaling, **parameters}
    for key, parts in {
        "rope_theta": (config, scaling, parameters),
        "rope_type": (scaling, parameters),
    }.items():
        values = {part[key] for part in parts if part.get(key) is not None}
        if len(values) > 1:
            raise ModelNotLoadedError(
                f"{name!r}: its config states {key} {len(values)} times differently "
                f"({', '.join(map(str, sorted(values)))}), in rope_theta, rope_scaling and "
                "rope_parameters; set the right one in proposer.overrides"
            )
        if values:
            rope[key] = values.pop()
    return rope


def _window(config: Config) -> int | None:
    slides = "sliding_attention" in (config.get("layer_types") or ())
    return config.get("sliding_window") if slides or config.get("use_sliding_window") else None


def _base_model(raw: Config) -> str | None:
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    return raw.get("base_model_name_or_path") or verifier.get("name_or_path")


def _draft_vocab_size(name: str, config: Config, tensors: Tensors) -> int | None:
    stated = config.get("draft_vocab_size")
    if "lm_head.weight" in tensors:
        rows = tensors["lm_head.weight"].shape[0]
        if stated is not None and stated != rows:
            raise ModelNotLoadedError(
                f"{name!r}: draft_vocab_size={stated} and lm_head.weight has {rows} rows"
            )
        return rows
    if stated is not None or config.get("tie_word_embeddings"):
        key = "draft_vocab_size" if stated is not None else "tie_word_embeddings"
        raise ModelNotLoadedError(
            f"{name!r} lacks lm_head.weight and its config sets {key}={config[key]}: an LM head "
            "was lost; export it again"
        )
    return None


def _pop_target_ids(
    name: str, tensors: dict[str, Tensor], vocab_size: int
) -> Int[Tensor, " D"] | None:
    """Remove `d2t` and `t2d` from the tensors; return the ids that they name, if they agree."""
    offsets, known = tensors.pop("d2t", None), tensors.pop("t2d", None)
    num_drafts = tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else vocab_size
    if offsets is None:
        if num_drafts != vocab_size or (known is not None and not bool(known.all())):
            raise ModelNotLoadedError(
                f"{name!r} drafts from {num_drafts} of {vocab_size} tokens and lacks d2t, which "
                "names them"
            )
        return None
    if offsets.shape != (num_drafts,):
        raise ModelNotLoadedError(
            f"{name!r}: d2t has shape {list(offsets.shape)} and lm_head.weight {num_drafts} rows"
        )
    ids = torch.arange(num_drafts) + offsets.long()
    lowest, highest, num_distinct = int(ids.min()), int(ids.max()), len(ids.unique())
    if lowest < 0 or highest >= vocab_size or num_distinct < num_drafts:
        raise ModelNotLoadedError(
            f"{name!r}: d2t must hold offsets, so that draft id i is the target's i + d2t[i]; it "
            f"leads to {num_distinct} ids from {lowest} to {highest} in a vocabulary of "
            f"{vocab_size}"
        )
    if known is not None and not torch.equal(known.nonzero()[:, 0], ids.sort().values):
        raise ModelNotLoadedError(
            f"{name!r}: t2d and d2t name different tokens; export the head again"
        )
    return None if num_drafts == vocab_size and not bool(offsets.any()) else ids


def _layer_ids(
    name: str, raw: Config, overrides: Config
) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the captured layers and their convention.

    Writers mean layer inputs by ids at the top of a config, and outputs by ids in `eagle_config`.
    Both may be present, for readers of either kind; equal ids are taken for inputs.
    """
    top = overrides.get(LAYER_IDS, raw.get(LAYER_IDS))
    nested = None if LAYER_IDS in overrides else (raw.get("eagle_config") or {}).get(LAYER_IDS)
    if top is None:
        return (None, None) if nested is None else (tuple(nested), "outputs")
    if nested is not None and list(top) not in (list(nested), [k + 1 for k in nested]):
        raise ModelNotLoadedError(
            f"{name!r}: {LAYER_IDS} is {top} on top of its config and {nested} in eagle_config; "
            "set the right one in proposer.overrides"
        )
    return tuple(top), "inputs"
