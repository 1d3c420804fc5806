"""What a drafting head takes: by its tensors where they are at hand, else as a new one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import LlamaConfig, PreTrainedConfig

from specresearch.models.eagle_format import FORMATS, LAYER_KEYS, layer_like, usual_layers
from specresearch.models.eagle_head import EagleHead
from specresearch.models.load_errors import ModelNotLoadedError, first_line
from specresearch.models.loading import read_json, resolve
from specresearch.models.medusa import MedusaHeads
from specresearch.models.random_weights import TENSORS, shape_file, shape_names
from specresearch.planning.kv_size import KVLayer
from specresearch.planning.model_size import ModelSize, count_shapes

DRAFT_VOCAB_SIZE = 32000  # of a new EAGLE-3 head
NUM_MEDUSA_HEADS = 4  # of new Medusa heads, each with an LM head


@dataclass(frozen=True)
class HeadSize:
    """A head's numbers, and what it reads of its target.

    Attributes:
        num_features: Hidden states of the target that it reads for a token.
        has_lm_head: False if it ends in the target's LM head.
    """

    size: ModelSize
    num_features: int
    has_lm_head: bool


def eagle_size(
    version: int, checkpoint: str | None, target: PreTrainedConfig, revision: str | None = None
) -> HeadSize:
    """Count an EAGLE head.

    Args:
        version: 1 (EAGLE-2 heads are the same) or 3.
        checkpoint: A shape of the package, a folder with safetensors, or a hub id, of which only
            config.json is read; None plans a new head with the proportions of its target.
    """
    if checkpoint is None:
        config, shapes = {}, None
        name = f"new EAGLE-{version} head"
    else:
        config, shapes = _read(checkpoint, revision)
        config = dict(config.get("transformer_layer_config") or {}) | config
        name = checkpoint
    if shapes is None:
        layer, shapes = _eagle_shapes(name, version, config, target)
    else:
        layer = _layer(name, config, target)
    num_parameters, num_linear = count_shapes(shapes)
    rows = [
        shape[0]
        for key, shape in shapes.items()
        if key.endswith(("k_proj.weight", "v_proj.weight"))
    ]
    if not rows or "fc.weight" not in shapes:
        raise ModelNotLoadedError(
            f"{name!r} holds no EAGLE head: it lacks fc.weight or an attention layer; name the "
            "folder or hub id of one"
        )
    num_heads = layer.num_key_value_heads or layer.num_attention_heads
    text: Any = target.get_text_config(decoder=True)
    size = ModelSize(
        name=name,
        num_parameters=num_parameters,
        num_linear=num_linear,
        hidden=layer.hidden_size,
        vocab_size=text.vocab_size,
        intermediate=layer.intermediate_size,
        num_heads=layer.num_attention_heads,
        kv=(KVLayer(num_heads, sum(rows) // num_heads),),
    )
    num_features = max(shapes["fc.weight"][1] // text.hidden_size, 1) if version == 3 else 1
    return HeadSize(size, num_features, has_lm_head="lm_head.weight" in shapes)


def medusa_size(
    checkpoint: str | None, target: PreTrainedConfig, revision: str | None = None
) -> HeadSize:
    """Count Medusa heads, which cache nothing; the arguments are those of `eagle_size`."""
    text: Any = target.get_text_config(decoder=True)
    if checkpoint is None:
        with torch.device("meta"):
            heads = MedusaHeads(text.hidden_size, text.vocab_size, NUM_MEDUSA_HEADS)
        shapes, name = _shapes_of(heads), f"{NUM_MEDUSA_HEADS} new Medusa heads"
    else:
        _, stored = _read(checkpoint, revision)
        if stored is None:
            raise ModelNotLoadedError(
                f"{checkpoint!r}: published configs of Medusa heads do not give their sizes; name "
                "a folder with their safetensors, or leave proposer.head out for new heads"
            )
        shapes, name = stored, checkpoint
    if not any(key.endswith("linear.weight") for key in shapes):
        raise ModelNotLoadedError(f"{name!r} holds no Medusa heads; name the folder of some")
    num_parameters, num_linear = count_shapes(shapes)
    has_lm_head = any(shape[0] != text.hidden_size for shape in shapes.values())
    size = ModelSize(name, num_parameters, num_linear, text.hidden_size, text.vocab_size)
    return HeadSize(size, num_features=1, has_lm_head=has_lm_head)


def _read(
    checkpoint: str, revision: str | None
) -> tuple[dict[str, Any], dict[str, list[int]] | None]:
    """Return a head's config and the shapes of its tensors, None where only a hub has them."""
    if checkpoint in shape_names(heads=True):
        config = json.loads(shape_file(checkpoint, is_head=True).read_text(encoding="utf-8"))
        return config, config.pop(TENSORS)
    folder = Path(resolve(checkpoint))
    if not folder.is_dir():
        try:
            return PreTrainedConfig.get_config_dict(checkpoint, revision=revision)[0], None
        except (OSError, ValueError) as error:
            raise ModelNotLoadedError(
                f"{checkpoint!r} is neither a local folder nor reachable on the hub: "
                f"{first_line(error)}; leave proposer.head out to plan a new head"
            ) from error
    if not (folder / "config.json").is_file():
        raise ModelNotLoadedError(f"the folder {folder} holds no head: it has no config.json")
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as stored:
                for key in stored.keys():  # noqa: SIM118
                    shapes[key] = list(stored.get_slice(key).get_shape())
        except SafetensorError as error:
            raise ModelNotLoadedError(f"{file} is damaged ({error}); fetch it again") from error
    return read_json(folder / "config.json"), shapes or None


def _layer(name: str, config: Mapping[str, Any], target: PreTrainedConfig) -> LlamaConfig:
    """Return the config of a head's layer, with the target's proportions where it says nothing."""
    text: Any = target.get_text_config(decoder=True)
    like = layer_like(target, text.vocab_size, text.max_position_embeddings)
    stated = {key: config[key] for key in LAYER_KEYS if config.get(key) is not None}
    if "hidden_size" not in stated:
        return like
    try:
        return LlamaConfig(**stated, num_hidden_layers=1, tie_word_embeddings=False)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ModelNotLoadedError(
            f"the config of {name!r} describes no layer: {first_line(error.__cause__ or error)}; "
            "correct it, or leave proposer.head out to plan a new head"
        ) from error


def _eagle_shapes(
    name: str, version: int, config: Mapping[str, Any], target: PreTrainedConfig
) -> tuple[LlamaConfig, dict[str, list[int]]]:
    """Return the layer and the tensors of a head that its config describes, or of a new one."""
    text: Any = target.get_text_config(decoder=True)
    layer = _layer(name, config, target)
    num_drafts = config.get("draft_vocab_size") or min(DRAFT_VOCAB_SIZE, text.vocab_size)
    width = config.get("target_hidden_size") or text.hidden_size
    layer_ids = usual_layers(text.num_hidden_layers)
    with torch.device("meta"):
        head = EagleHead.of(FORMATS[version].new(layer, width, layer_ids, num_drafts))
    return layer, _shapes_of(head)


def _shapes_of(module: nn.Module) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in module.named_parameters()}
