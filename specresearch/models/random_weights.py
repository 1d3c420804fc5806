"""Random weights in the shapes of real models, for speed at real size without a download.

The shapes ship with the package as configurations. Random weights say nothing about quality; what a
pass costs depends on the shape alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from specresearch.models.load_errors import ModelNotLoadedError

Weights: TypeAlias = Literal["trained", "random"]
SHAPES = Path(__file__).parent.parent / "shapes"
TENSORS = "tensors"  # key of a head's shape: the dimensions of its tensors by name
SEED = 0
CONFIDENCE = 8.0  # standard deviation of logits: distributions are as peaked as trained ones


def name_of(model: str, weights: Weights, gguf_file: str | None = None) -> str:
    """Return what results and messages call a model, which tells its weights from others."""
    if gguf_file is not None:
        return f"{model}/{gguf_file}"
    return f"{model} with random weights" if weights == "random" else model


def shape_names(*, heads: bool = False) -> list[str]:
    """Return the names of the causal LMs, or the heads, whose shapes ship with the package."""
    names = []
    for file in sorted(SHAPES.glob("*/*.json")):
        if (TENSORS in json.loads(file.read_text(encoding="utf-8"))) == heads:
            names.append(file.relative_to(SHAPES).with_suffix("").as_posix())
    return names


def shape_file(model: str, *, is_head: bool = False) -> Path:
    """Return the configuration of a shape that ships with the package.

    Raises:
        ModelNotLoadedError: If there is none of this name.
    """
    names = shape_names(heads=is_head)
    if model not in names:
        kind = "drafting head" if is_head else "model"
        raise ModelNotLoadedError(
            f"no shape of a {kind} {model!r} is packaged; use a folder, or one of "
            f"{', '.join(names)}"
        )
    return SHAPES / f"{model}.json"


def random_model(
    config: PreTrainedConfig, dtype: torch.dtype, placement: Mapping[str, Any]
) -> PreTrainedModel:
    """Build a causal LM with random weights, each tensor in its dtype and on its device at once.

    Matrices keep the scale of what they multiply, so that nothing overflows, and the final norm
    widens it. An LM head of its own prefers one token clearly after each token, as trained heads
    do, so that rounding seldom changes the output. No token ends an output.

    Args:
        placement: The `device_map` of transformers' `from_pretrained`.
    """
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    std = config.get_text_config(decoder=True).hidden_size ** -0.5
    config.initializer_range = std
    with _seeded(), _quiet(), torch.no_grad():
        # Weights that a checkpoint lacks are initialised in place, and so are all of an empty one.
        model = model_class.from_pretrained(
            None, config=config, state_dict={}, dtype=dtype, **placement
        )
        embedding: Tensor = model.get_input_embeddings().weight
        lm_head: Tensor = model.get_output_embeddings().weight
        if lm_head is not embedding:
            embedding.normal_()
            successor = torch.randperm(len(embedding)).to(embedding.device)
            lm_head.copy_(embedding[successor] * std)
        norms = [part for part in model.base_model.modules() if "Norm" in type(part).__name__]
        norms[-1].weight += CONFIDENCE - 1  # some store the weight less 1
    model.generation_config.eos_token_id = []
    return model


def random_head(model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration of a drafting head, and random tensors in bfloat16.

    Raises:
        ModelNotLoadedError: If no head of this name ships with the package.
    """
    config = json.loads(shape_file(model, is_head=True).read_text(encoding="utf-8"))
    shapes: dict[str, Sequence[int]] = config.pop(TENSORS)
    with _seeded():
        tensors = {
            name: _random_tensor(name, shape, config.get("vocab_size", 0))
            for name, shape in shapes.items()
        }
    return config, tensors


def randomized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of the same shapes with random values; indexes stay as they are."""
    with _seeded():
        result: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            is_index = not tensor.is_floating_point()
            result[name] = tensor if is_index else _random_tensor(name, tensor.shape, 0)
    return result


def _random_tensor(name: str, shape: Sequence[int], vocab_size: int) -> Tensor:
    """Return a head's tensor: norms are ones, biases zeros, and matrices keep the scale."""
    if name == "d2t":  # draft id i stands for the target's i + d2t[i]
        ids = torch.arange(shape[0])
        return ids * vocab_size // shape[0] - ids
    tensor = torch.empty(*shape, dtype=torch.bfloat16)
    if len(shape) == 1:
        return tensor.fill_(0.0 if name.endswith("bias") else 1.0)
    if name.startswith("embed_tokens."):
        return tensor.normal_()
    std = shape[1] ** -0.5
    return tensor.normal_(std=std * CONFIDENCE if name.startswith("lm_head.") else std)


@contextmanager
def _seeded() -> Iterator[None]:
    """Draw the same numbers every time, and leave the process's generators as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(SEED)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from reporting that weights are missing."""
    verbosity = transformers_logging.get_verbosity()
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bar:
            transformers_logging.enable_progress_bar()
