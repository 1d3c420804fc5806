"""Finding and loading weights: the zoo that ships with the package, a local folder, or the hub."""

import json
import logging
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import GatedRepoError, StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specresearch.models.gguf_file import SUFFIX, load_gguf
from specresearch.models.load_errors import ModelNotLoadedError, first_line, why_unread
from specresearch.models.packaged import PACKAGES, packaged_folder
from specresearch.models.quantization import Quantization, choose_quantizer, explain_failure
from specresearch.models.random_weights import (
    Weights,
    random_model,
    shape_file,
    shape_names,
)

OWN = "specresearch"  # config.json key of everything that is not published elsewhere
ZOO = Path(__file__).parent.parent / "zoo"
TOY_TOKENIZER = "zoo:tiny"  # stands in where random weights come without a tokenizer
INDEXES = {
    "model.safetensors": "model.safetensors.index.json",
    "pytorch_model.bin": "pytorch_model.bin.index.json",
}
SPREAD = ("balanced", "sequential", "balanced_low_0")  # devices that are all GPUs
MIN_KNOWN_FRACTION = 0.5  # of a model's vocabulary; padding takes far less than the rest
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_UNUSABLE = (OSError, ValueError, KeyError, StrictDataclassError)  # what the library raises

logger = logging.getLogger(__name__)


def resolve(model: str) -> str:
    """Turn `zoo:name` into the folder in the package, and a hub id that a package brings into its.

    Any other path or hub id is returned as it is.

    Raises:
        ModelNotLoadedError: For an unknown zoo name; lists those that exist.
    """
    if not model:
        raise ModelNotLoadedError(
            "no model is named; set target.model=, or draft= for a draft model, to a folder or a "
            "hub id"
        )
    if not model.startswith("zoo:"):
        is_path = model.startswith(("/", "./", "../", "~"))
        file = Path(model).expanduser()
        if file.suffix == SUFFIX and file.is_file():
            raise ModelNotLoadedError(
                f"{model} is a file; name its folder and the file, as in "
                f"target.model={file.parent} target.gguf_file={file.name}"
            )
        if is_path and not file.is_dir():
            raise ModelNotLoadedError(f"there is no folder {model}; correct the path")
        return str(packaged_folder(model) or model)
    names = sorted(path.parent.name for path in ZOO.glob("*/config.json"))
    if model.removeprefix("zoo:") not in names:
        raise ModelNotLoadedError(
            f"{model!r} is not in the zoo; there are: {', '.join(f'zoo:{n}' for n in names)}"
        )
    return str(ZOO / model.removeprefix("zoo:"))


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_dtype(dtype: str, device: str) -> torch.dtype:
    """Look up a dtype; `auto` is bfloat16 on CUDA and float32 on the CPU."""
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_model(
    model: str,
    *,
    weights: Weights = "trained",
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    quantization: Quantization | None = None,
    gguf_file: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer.

    Args:
        weights: `random` builds the model from its configuration alone, without a hub: that of a
            folder, or one that ships with the package. Without a tokenizer in the folder, prompts
            are in the tokens of `TOY_TOKENIZER`.
        device: `auto` is the GPU if there is one. Also a device_map name such as `balanced`.
        allow_pickle: Also accept weights that are not safetensors.
        quantization: `int8`, `int4`, `float8` or settings; see `choose_quantizer`.
        gguf_file: A GGUF file of the folder or repository, to be dequantised into `dtype`.

    Raises:
        ModelNotLoadedError: With the reason.
    """
    is_random = weights == "random"
    if is_random and quantization:
        raise ValueError("target.weights=random cannot be quantized; leave out target.quantization")
    if gguf_file is not None and (is_random or quantization):
        raise ValueError(
            f"gguf_file={gguf_file} names trained weights, which are dequantised; leave out "
            "weights=random and quantization"
        )
    path = _random_source(model) if is_random else resolve(model)
    device = default_device() if device == "auto" else device
    spread = device in SPREAD
    if not spread:
        _check_device(device)
    torch_dtype = resolve_dtype(dtype, "cuda" if spread else device)
    quantizer = None
    if quantization:
        on_device = torch.device("cuda" if spread else device)
        quantizer = choose_quantizer(quantization, on_device, torch_dtype)
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    placement: dict[str, Any] = {"device_map": device} if spread else {}
    if quantizer:
        placement = {"device_map": {"": device}} | placement
        placement["quantization_config"] = quantizer.config
    if gguf_file is not None:
        loaded: Any
        loaded, tokenizer = load_gguf(path, gguf_file, torch_dtype, **placement, **common)
        vocab_size = loaded.config.get_text_config(decoder=True).vocab_size
        check_vocabulary(model, tokenizer, vocab_size)
        return (loaded if spread else loaded.to(device)), tokenizer
    _check_folder(Path(path))
    try:
        config = AutoConfig.from_pretrained(path, **common)
        if is_random:
            tokenizer = _tokenizer_for_random(model, path)
            return random_model(config, torch_dtype, placement or {"device_map": device}), tokenizer
        tokenizer = AutoTokenizer.from_pretrained(path, **common)
        load: Any = AutoModelForCausalLM.from_pretrained
        loaded, report = load(
            path,
            config=config,
            dtype=torch_dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **placement,
            **common,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"{model!r} does not fit the memory of {device}; use a smaller dtype, or "
            "device=balanced"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        raise ModelNotLoadedError(
            f"the weights of {model!r} are damaged or do not fit its config: {error}"
        ) from error
    except ImportError as error:
        raise ModelNotLoadedError(explain_failure(model, config, error)) from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise ModelNotLoadedError(
            f"the pickled weights of {model!r} are damaged, or hold more than tensors: "
            f"{why_unread(error)}"
        ) from error
    except _UNUSABLE as error:
        raise ModelNotLoadedError(_explain(model, path, error)) from error
    check_vocabulary(model, tokenizer, config.get_text_config(decoder=True).vocab_size)
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelNotLoadedError(
            f"the weights of {model!r} lack {len(missing)} tensors that its config asks for, such "
            f"as {missing[0]!r}; fetch them again, or correct the config"
        )
    if quantizer:
        quantizer.finish(loaded)
    return (loaded if spread or quantizer else loaded.to(device)), tokenizer


def read_config(
    model: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedConfig:
    """Read a causal LM's configuration, and nothing else of it.

    It is looked for among the shapes of the package, then in a folder, then on the hub.

    Raises:
        ModelNotLoadedError: With the reason.
    """
    path = str(shape_file(model)) if model in shape_names() else resolve(model)
    _check_folder(Path(path))
    try:
        return AutoConfig.from_pretrained(
            path, revision=revision, trust_remote_code=trust_remote_code
        )
    except _UNUSABLE as error:
        raise ModelNotLoadedError(_explain(model, path, error)) from error


def _random_source(model: str) -> str:
    """Return the folder or the file with a model's configuration.

    Raises:
        ModelNotLoadedError: If it is neither on this machine nor in the package.
    """
    if model.startswith("zoo:") or Path(model).expanduser().is_dir():
        return resolve(model)
    return str(shape_file(model))


def _tokenizer_for_random(model: str, path: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer in the model's folder; without one, that of a model in the zoo."""
    if Path(path, "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(path)
    logger.info(
        "%s has random weights and no tokenizer here: prompts are in the tokens of %s, and outputs "
        "are no text",
        model,
        TOY_TOKENIZER,
    )
    return AutoTokenizer.from_pretrained(resolve(TOY_TOKENIZER))


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; anything else raises ModelNotLoadedError."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelNotLoadedError(f"{file} is not valid JSON: {error}; fetch it again") from error


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of every tensor that an index lists.

    Raises:
        ModelNotLoadedError: If it lists none, or not by name.
    """
    files = read_json(index).get("weight_map")
    names = files.values() if isinstance(files, dict) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ModelNotLoadedError(
            f"{index} lists no tensors and their files (weight_map={str(files)[:60]}); fetch it "
            "again"
        )
    return dict(files or {})


def check_vocabulary(model: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise ModelNotLoadedError for a tokenizer with tokens beyond the vocabulary, or far too few.

    Many models have a few more embeddings than tokens, for speed. Special tokens beyond the
    vocabulary are only a warning: some published models have one, and text rarely spells it.
    """
    remedy = (
        "it belongs to another model; put the tokenizer that this one was trained with into its "
        "folder"
    )
    vocab = tokenizer.get_vocab()
    beyond = sorted((id, token) for token, id in vocab.items() if id >= vocab_size)
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    samples = ", ".join(f"{token!r} = {id}" for id, token in beyond[:3])
    if any(token not in special for _, token in beyond):
        raise ModelNotLoadedError(
            f"the tokenizer of {model!r} has {len(beyond)} tokens beyond the model's vocabulary of "
            f"{vocab_size} ({samples}): {remedy}"
        )
    if beyond:
        warnings.warn(
            f"special tokens of {model!r} lie beyond its vocabulary of {vocab_size}, and prompts "
            f"with them are refused: {samples}",
            stacklevel=3,
        )
    if len(vocab) < MIN_KNOWN_FRACTION * vocab_size:
        raise ModelNotLoadedError(
            f"the tokenizer of {model!r} has {len(vocab)} tokens and the model a vocabulary of "
            f"{vocab_size}: {remedy}"
        )


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(
            f"device={device} is unknown; use auto, cpu, cuda, a single GPU such as cuda:1, or "
            f"one of {', '.join(SPREAD)}, which spread a model"
        ) from error
    num_gpus = torch.cuda.device_count()
    if kind == "cuda" and not num_gpus:
        raise ValueError(f"device={device!r}, but torch sees no GPU; use target.device=cpu")
    if kind == "cuda" and (torch.device(device).index or 0) >= num_gpus:
        raise ValueError(f"device={device!r}, but torch sees {num_gpus} GPUs, counted from 0")


def _check_folder(folder: Path) -> None:
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ModelNotLoadedError(
            f"the folder {folder} does not hold a usable causal LM: it has no config.json"
            f"{model_inside(folder)}"
        )
    for single, index in INDEXES.items():
        if (folder / index).is_file() and not (folder / single).exists():
            read_weight_map(folder / index)


def model_inside(folder: Path) -> str:
    """Return a hint at a model in a folder of this one, such as the student of a training run."""
    inside = sorted(folder.glob("*/config.json"))
    return f"; did you mean {inside[0].parent}?" if inside else ""


def saved_as(config: Mapping[str, Any]) -> str:
    """Return a hint at the proposer that drafts with a checkpoint, if its config names one."""
    method = config.get(OWN, {}).get("method")
    if any(name.endswith("Eagle3") for name in config.get("architectures") or ()):
        method = "eagle3"
    return f"; it was saved as {method}, so draft with it by +proposer={method}" if method else ""


def _explain(model: str, path: str, error: Exception) -> str:
    is_invalid = isinstance(error, StrictDataclassError)
    reason = first_line((error.__cause__ if is_invalid else None) or error)
    if reason.startswith("Couldn't instantiate the backend tokenizer"):
        reason = "it has no tokenizer"
    if isinstance(error, KeyError):
        reason = f"one of its files has no entry {reason}, or is damaged"
    if "safetensors" in reason and "pickle" not in reason:
        return (
            f"{model!r} has no safetensors weights ({reason}); to read pickled weights you trust, "
            "set target.allow_pickle=true"
        )
    if Path(path).exists():
        try:
            hint = saved_as(json.loads(Path(path, "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            hint = ""
        return f"the folder {path} does not hold a usable causal LM: {reason}{hint}"
    if isinstance(error.__cause__, GatedRepoError):
        return (
            f"{model!r} is gated: accept its licence at https://huggingface.co/{model}, then run "
            "`hf auth login` or set HF_TOKEN"
        )
    remedy = "check the spelling and the network, or use target=tiny, which ships with the package"
    if model in PACKAGES:
        remedy = f"log in where it can be reached, or {PACKAGES[model].install_command}"
    return f"{model!r} is neither a local folder nor reachable on the hub: {reason}; {remedy}"
