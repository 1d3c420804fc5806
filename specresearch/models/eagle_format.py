"""EAGLE heads as their authors published them: every layout becomes one form here.

What is missing, unexpected or contradictory is an error that names the key: a head that is loaded a little wrong still
drafts, only badly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig

from specresearch.models.head_files import read_head
from specresearch.models.loading import ModelNotLoadedError

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTIONS = ("inputs", "outputs")


@dataclass(frozen=True)
class EagleFormat:
    """What an EAGLE head is made of, whichever layout described it.

    version: 1 (for EAGLE-1 and EAGLE-2) or 3. layer: of the decoder layer; its `vocab_size` is the target's. fc_width: values
    that `fc` reads. draft_vocab_size: rows of the head's own LM head; None where it uses the target's. own_embedding:
    an embedding matrix is stored. trains_embedding: and differs from the target's on purpose. window: sliding window.
    num_fc_norms: norms over single target features. norm_before_fc: one norm over all of them. norm_before_residual: the
    residual is the normed hidden state. norm_output: what is fed back is normed. layer_ids, id_convention: captured
    target layers as the config states them, `inputs` or `outputs` of those layers. base_model: the target it names.
    """

    version: int
    layer: LlamaConfig
    fc_width: int
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    draft_vocab_size: int | None = None
    own_embedding: bool = False
    trains_embedding: bool = False
    window: int | None = None
    num_fc_norms: int = 0
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    target_hidden_size: int | None = None
    layer_ids: tuple[int, ...] | None = None
    id_convention: str | None = None
    base_model: str | None = None


@dataclass(frozen=True)
class EagleFiles:
    """tensors: under one set of names. target_ids: the target's id of every draft id; None where they are the same."""

    name: str
    format: EagleFormat
    tensors: dict[str, Tensor]
    target_ids: Int[Tensor, " D"] | None = None


def read_eagle(
    checkpoint: str, *, revision: str | None = None, overrides: Mapping[str, Any] | None = None
) -> EagleFiles:
    """An EAGLE-1, EAGLE-2 or EAGLE-3 checkpoint, raw or in the layout of the speculators library.

    overrides: replace keys of its config, such as `rope_theta`. Raises ModelNotLoadedError naming the key that is wrong.
    """
    files = read_head(checkpoint, revision=revision)
    name, raw, changed = files.name, files.config, dict(overrides or {})
    config = _flatten(raw, changed)
    tensors = {
        key.replace("midlayer.", "layers.0.", 1): value
        for key, value in files.tensors.items()
        if not key.startswith("verifier_") and not key.endswith("rotary_emb.inv_freq")
    }
    is_eagle3 = any(
        key.startswith(("midlayer.", "layers.0.hidden_norm.", "d2t")) for key in files.tensors
    )
    _check_supported(name, config, tensors)
    _check_biases(name, config, tensors, has_fc_bias=not is_eagle3)
    format = EagleFormat(
        1,
        _layer(name, config, tensors),
        tensors["fc.weight"].shape[1],
        fc_bias="fc.bias" in tensors,
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        o_bias="layers.0.self_attn.o_proj.bias" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
        trains_embedding=bool(config.get("embed_requires_grad", False)),
        window=_window(config),
        base_model=_base_model(raw),
    )
    if not is_eagle3:
        return EagleFiles(name, format, tensors)
    draft_vocab_size = _draft_vocab_size(name, config, tensors)
    target_ids = _target_ids(name, tensors, config["vocab_size"])
    layer_ids, convention = _layer_ids(name, raw, changed)
    format = replace(
        format,
        version=3,
        draft_vocab_size=draft_vocab_size,
        num_fc_norms=sum(key.startswith("fc_norm.") for key in tensors)
        if config.get("fc_norm")
        else 0,
        norm_before_fc=bool(config.get("norm_before_fc", False)),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
        target_hidden_size=config.get("target_hidden_size"),
        layer_ids=layer_ids,
        id_convention=convention,
    )
    return EagleFiles(name, format, tensors, target_ids)


def _check_supported(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    standards = {
        "speculators_model_type": "eagle3",
        "num_hidden_layers": 1,
        "use_aux_hidden_state": True,
    }
    for key, standard in standards.items():
        if config.get(key, standard) != standard:
            raise ModelNotLoadedError(
                f"{name!r}: {key}={config[key]!r} is not read; only {standard!r} is"
            )
    if "fc.weight" not in tensors or tensors["fc.weight"].dim() != 2:
        raise ModelNotLoadedError(f"{name!r} has no matrix fc.weight: it is no EAGLE checkpoint")
    if config.get("fc_norm") and config.get("norm_before_fc"):
        raise ModelNotLoadedError(
            f"{name!r}: fc_norm and norm_before_fc are both set; set one false in proposer.overrides"
        )


def _flatten(raw: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """One level: flags may stand on top or in `eagle_config`, the layer's shape on top or in `transformer_layer_config`."""
    config = {
        **(raw.get("eagle_config") or {}),
        **(raw.get("transformer_layer_config") or {}),
        **raw,
        **overrides,
    }
    if "rope_theta" in overrides:
        for key in {"rope_parameters", "rope_scaling"} - overrides.keys():
            config[key] = {k: v for k, v in (config.get(key) or {}).items() if k != "rope_theta"}
    return config


def _check_biases(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, has_fc_bias: bool
) -> None:
    """A bias exists where the file has one; a config that says otherwise is wrong, or the file is."""
    places = {
        "qkv_bias": "self_attn.q_proj.bias",
        "attention_bias": "self_attn.q_proj.bias",
        "mlp_bias": "mlp.up_proj.bias",
    }
    stated = {key: f"layers.0.{place}" for key, place in places.items()}
    if has_fc_bias:
        stated["bias"] = "fc.bias"
    for key, place in stated.items():
        says = config.get(key)
        if says is not None and bool(says) != (place in tensors):
            raise ModelNotLoadedError(
                f"{name!r}: its config says {key}={says} and {place} is {'there' if place in tensors else 'missing'}; if the "
                f"file is right, set proposer.overrides={{{key}: {str(not says).lower()}}}"
            )


def _layer(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LlamaConfig:
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if config.get(key) is None:
            raise ModelNotLoadedError(
                f"{name!r}: its config lacks {key}; set it in proposer.overrides"
            )
    heads = config["num_attention_heads"]
    return LlamaConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        hidden_act=config.get("hidden_act", "silu"),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        max_position_embeddings=config.get("max_position_embeddings") or 2048,
        mlp_bias="layers.0.mlp.up_proj.bias" in tensors,
        rope_parameters=_rope(name, config),
        tie_word_embeddings=False,
    )


def _rope(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings from `rope_theta` and `rope_scaling` (transformers 4), `rope_parameters` (5), or both where they agree."""
    parts = [dict(config.get(key) or {}) for key in ("rope_scaling", "rope_parameters")]
    for part in parts:
        if "type" in part:
            part.setdefault("rope_type", part.pop("type"))
    stated = [
        ("rope_theta", part["rope_theta"])
        for part in [config, *parts]
        if part.get("rope_theta") is not None
    ]
    stated += [
        ("rope_type", part["rope_type"]) for part in parts if part.get("rope_type") is not None
    ]
    for key in ("rope_theta", "rope_type"):
        values = {value for k, value in stated if k == key}
        if len(values) > 1:
            raise ModelNotLoadedError(
                f"{name!r}: its config states {key} {len(values)} times differently ({', '.join(map(str, sorted(values)))}), in "
                "rope_theta, rope_scaling and rope_parameters; set the right one in proposer.overrides"
            )
    return {"rope_type": "default", "rope_theta": 10000.0, **parts[0], **parts[1], **dict(stated)}


def _window(config: Mapping[str, Any]) -> int | None:
    slides = config.get("use_sliding_window") or "sliding_attention" in (
        config.get("layer_types") or ()
    )
    return config.get("sliding_window") if slides else None


def _base_model(raw: Mapping[str, Any]) -> str | None:
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    return raw.get("base_model_name_or_path") or verifier.get("name_or_path")


def _draft_vocab_size(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> int | None:
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
            f"{name!r} lacks lm_head.weight and its config sets {key}={config[key]}: an LM head was lost; export it again"
        )
    return None


def _target_ids(name: str, tensors: dict[str, Tensor], vocab_size: int) -> Int[Tensor, " D"] | None:
    """Takes `d2t` and `t2d` out of the tensors. Raises ModelNotLoadedError unless they say the same."""
    offsets, known = tensors.pop("d2t", None), tensors.pop("t2d", None)
    num_drafts = tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else vocab_size
    if offsets is None:
        if num_drafts != vocab_size or (known is not None and not bool(known.all())):
            raise ModelNotLoadedError(
                f"{name!r} drafts from {num_drafts} of {vocab_size} tokens and lacks d2t, which names them"
            )
        return None
    if offsets.shape != (num_drafts,):
        raise ModelNotLoadedError(
            f"{name!r}: d2t has shape {list(offsets.shape)} and lm_head.weight {num_drafts} rows"
        )
    ids = torch.arange(num_drafts) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < num_drafts:
        raise ModelNotLoadedError(
            f"{name!r}: d2t must hold offsets, so that draft id i is the target's i + d2t[i]; it leads to "
            f"{len(ids.unique())} ids from {int(ids.min())} to {int(ids.max())} in a vocabulary of {vocab_size}"
        )
    if known is not None and not torch.equal(known.nonzero()[:, 0], ids.sort().values):
        raise ModelNotLoadedError(
            f"{name!r}: t2d and d2t name different tokens; export the head again"
        )
    return None if num_drafts == vocab_size and not bool(offsets.any()) else ids


def _layer_ids(
    name: str, raw: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[tuple[int, ...] | None, str | None]:
    """Ids on top of a config are those of layer inputs, ids in `eagle_config` those of layer outputs, as their writers mean.

    Both may be there, for readers of either kind; equal ids are taken for inputs.
    """
    top = overrides.get(LAYER_IDS, raw.get(LAYER_IDS))
    nested = None if LAYER_IDS in overrides else (raw.get("eagle_config") or {}).get(LAYER_IDS)
    agreeing = nested is None or top is None or list(top) in (list(nested), [k + 1 for k in nested])
    if not agreeing:
        raise ModelNotLoadedError(
            f"{name!r}: {LAYER_IDS} is {top} on top of its config and {nested} in eagle_config; set the right one in "
            "proposer.overrides"
        )
    if top is not None:
        return tuple(top), "inputs"
    return (None, None) if nested is None else (tuple(nested), "outputs")
