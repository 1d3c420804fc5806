"""Finding and loading weights: the zoo that ships with the package, a local folder, or the hub."""

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

OWN = "specresearch"  # what a config.json says beyond the published keys
ZOO = Path(__file__).parent.parent / "zoo"
INDEXES = {
    "model.safetensors": "model.safetensors.index.json",
    "pytorch_model.bin": "pytorch_model.bin.index.json",
}
LEAST_SHARE = 0.5  # of a model's vocabulary that a tokenizer of its own knows; padding takes far less than the rest
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class ModelNotLoadedError(ValueError):
    """A model is missing, unreadable or damaged; the message says which and what to do."""


def resolve(model: str) -> str:
    """`zoo:name` becomes the folder in the package; a path or hub id stays. An unknown zoo name lists those there are."""
    if not model:
        raise ModelNotLoadedError(
            "no model is named; set target.model=, or draft= for a draft model, to a folder or a hub id"
        )
    if not model.startswith("zoo:"):
        return model
    names = sorted(path.parent.name for path in ZOO.glob("*/config.json"))
    if model.removeprefix("zoo:") not in names:
        raise ModelNotLoadedError(
            f"{model!r} is not in the zoo; there are: {', '.join(f'zoo:{n}' for n in names)}"
        )
    return str(ZOO / model.removeprefix("zoo:"))


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_dtype(dtype: str, device: str) -> torch.dtype:
    """auto is bfloat16 on CUDA and float32 on the CPU."""
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_model(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    quantization: Mapping[str, Any] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer, on `device` (auto: the GPU if there is one) in `dtype`.

    allow_pickle: also accept weights that are not safetensors. device may be a device_map name such as "balanced".
    quantization: of the weights while they are loaded, in the terms of the transformers library: quant_method (bitsandbytes
    unless another is named) and its settings. Raises ModelNotLoadedError with the reason.
    """
    path = resolve(model)
    device = default_device() if device == "auto" else device
    spread = device in ("balanced", "sequential", "balanced_low_0")
    if not spread and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but torch sees no GPU; use target.device=cpu")
    quantized = _quantization(quantization) if quantization else None
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    _check_index(Path(path))
    try:
        config = AutoConfig.from_pretrained(path, **common)
        tokenizer = AutoTokenizer.from_pretrained(path, **common)
        loaded, report = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
            path,
            config=config,
            dtype=resolve_dtype(dtype, "cuda" if spread else device),
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **(
                {"device_map": device}
                if spread
                else {"device_map": {"": device}}
                if quantized
                else {}
            ),
            **({"quantization_config": quantized} if quantized else {}),
            **common,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"{model!r} does not fit the memory of {device}; use a smaller dtype, or device=balanced"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        raise ModelNotLoadedError(
            f"the weights of {model!r} are damaged or do not fit its config: {error}"
        ) from error
    except ImportError as error:
        raise ModelNotLoadedError(
            f"{model!r} cannot be quantized here: {str(error).strip().splitlines()[0]}; for bitsandbytes: pip install -e "
            "'.[quantization]'"
        ) from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise ModelNotLoadedError(
            f"the pickled weights of {model!r} are damaged, or hold more than tensors, which is not read: {why_unread(error)}"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotLoadedError(_explain(model, path, error)) from error
    check_vocabulary(model, tokenizer, config.get_text_config(decoder=True).vocab_size)
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelNotLoadedError(
            f"the weights of {model!r} lack {len(missing)} tensors that its config asks for, such as {missing[0]!r}; "
            "fetch them again, or correct the config"
        )
    return (loaded if spread or quantized else loaded.to(device)), tokenizer


def read_json(file: Path) -> dict[str, Any]:
    """Raises ModelNotLoadedError for what is not a JSON object."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelNotLoadedError(f"{file} is not valid JSON: {error}; fetch it again") from error


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of every tensor that an index lists.

    Raises ModelNotLoadedError for one that lists none, or not by name.
    """
    places = read_json(index).get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(name, str) for name in places.values())
    ):
        raise ModelNotLoadedError(
            f"{index} lists no tensors and their files (weight_map={str(places)[:60]}); fetch it again"
        )
    return places


def why_unread(error: Exception) -> str:
    """Say why a pickle was refused or could not be read, without torch's advice to load it all the same."""
    words = str(error).strip()
    foreign = re.search(r"GLOBAL (\S+)", words)
    if foreign:
        return f"it asks for {foreign[1]!r}, and anything but tensors may run code; get the weights as safetensors"
    if "weights_only" in words:
        return (
            "its pickle is none of tensors alone; fetch it again, or get the weights as safetensors"
        )
    reason = (
        f"{type(error).__name__}: {words.splitlines()[0].partition('. ')[0]}"
        if words
        else type(error).__name__
    )
    return f"{reason}; fetch it again"


def check_vocabulary(model: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raises ModelNotLoadedError for a tokenizer that is not the model's: with tokens beyond its vocabulary, or far too few.

    Many models have a few embeddings more than tokens, for speed. Special tokens beyond the vocabulary, which no text has
    unless it spells them, are a warning: some published models have one.
    """
    vocab = tokenizer.get_vocab()
    beyond = sorted((id, token) for token, id in vocab.items() if id >= vocab_size)
    names = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    told = ", ".join(f"{token!r} = {id}" for id, token in beyond[:3])
    if any(token not in names for _, token in beyond):
        raise ModelNotLoadedError(
            f"the tokenizer of {model!r} has {len(beyond)} tokens beyond the model's vocabulary of {vocab_size} ({told}): it "
            "belongs to another model; put the tokenizer that this one was trained with into its folder"
        )
    if beyond:
        warnings.warn(
            f"special tokens of {model!r} lie beyond its vocabulary of {vocab_size}, and prompts with them are refused: {told}",
            stacklevel=3,
        )
    if len(vocab) < LEAST_SHARE * vocab_size:
        raise ModelNotLoadedError(
            f"the tokenizer of {model!r} has {len(vocab)} tokens and the model a vocabulary of {vocab_size}: it belongs to "
            "another model; put the tokenizer that this one was trained with into its folder"
        )


def _check_index(folder: Path) -> None:
    for single, index in INDEXES.items():
        if (folder / index).is_file() and not (folder / single).exists():
            read_weight_map(folder / index)


def _quantization(settings: Mapping[str, Any]) -> QuantizationConfigMixin:
    try:
        return AutoQuantizationConfig.from_dict({"quant_method": "bitsandbytes", **settings})
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        raise ValueError(
            f"target.quantization={dict(settings)} is not one that the transformers library knows ({error}); for 4 bits use "
            "target.quantization={load_in_4bit:true}"
        ) from error


def saved_as(config: Mapping[str, Any]) -> str:
    """A hint at what drafts with a checkpoint, where its config says so."""
    method = config.get(OWN, {}).get("method")
    return f"; it was saved as {method}, so draft with it by +proposer={method}" if method else ""


def _explain(model: str, path: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, KeyError):
        reason = f"one of its files has no entry {reason}, or is damaged"
    if "safetensors" in reason and "pickle" not in reason:
        return f"{model!r} has no safetensors weights ({reason}); to read pickled weights you trust, set target.allow_pickle=true"
    if Path(path).exists():
        try:
            hint = saved_as(json.loads(Path(path, "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            hint = ""
        return f"the folder {path} does not hold a usable causal LM: {reason}{hint}"
    return (
        f"{model!r} is neither a local folder nor reachable on the hub: {reason}; check the spelling and the network, "
        "or use target=tiny, which ships with the package"
    )
