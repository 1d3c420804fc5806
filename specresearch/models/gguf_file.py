"""Weights in a GGUF file, dequantised by the transformers library into an ordinary model."""

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specresearch.models.load_errors import ModelNotLoadedError, first_line

SUFFIX = ".gguf"
TOKENIZER_FILE = "tokenizer.json"
QUANTIZATION_MARKS = ("hf_quantizer", "is_quantized", "quantization_method", "quantization_config")
# what the libraries raise for files that are cut, foreign or of an unknown kind
READING_ERRORS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    struct.error,
)


def load_gguf(
    path: str,
    gguf_file: str,
    dtype: torch.dtype,
    *,
    device_map: Any = None,
    **common: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a GGUF file of a folder or a hub repository.

    A `tokenizer.json` in the folder is preferred to the tokenizer in the file, since the latter is
    converted and may lack added tokens.

    Args:
        device_map: Where the model's layers go; None leaves all of them on the CPU.
        common: Further arguments of every `from_pretrained`, such as `revision`.

    Raises:
        ModelNotLoadedError: With the reason.
        MemoryError: If the weights do not fit.
    """
    _check(path, gguf_file)
    tokenizer_source = {} if Path(path, TOKENIZER_FILE).is_file() else {"gguf_file": gguf_file}
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        config = AutoConfig.from_pretrained(path, gguf_file=gguf_file, **common)
        tokenizer = AutoTokenizer.from_pretrained(path, **tokenizer_source, **common)
        loaded, report = load(
            path,
            gguf_file=gguf_file,
            config=config,
            dtype=dtype,
            device_map=device_map,
            output_loading_info=True,
            **_dequantization(),
            **common,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"{gguf_file} of {path!r} does not fit the memory of {device_map}; use a smaller dtype"
        ) from error
    except READING_ERRORS as error:
        raise ModelNotLoadedError(_explain(path, gguf_file, error)) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelNotLoadedError(
            f"{gguf_file} of {path!r} lacks {len(missing)} tensors of its architecture, such as "
            f"{missing[0]!r}; fetch it again"
        )
    return _forget_quantization(loaded), tokenizer


def _check(path: str, gguf_file: str) -> None:
    folder = Path(path).expanduser()
    if not gguf_file.endswith(SUFFIX):
        raise ModelNotLoadedError(f"gguf_file={gguf_file} does not end with {SUFFIX}")
    if folder.is_dir() and not (folder / gguf_file).is_file():
        names = sorted(file.name for file in folder.glob(f"*{SUFFIX}"))
        held = f"it holds {', '.join(names)}" if names else "it holds no GGUF file"
        raise ModelNotLoadedError(f"the folder {folder} has no file {gguf_file}; {held}")
    if find_spec("gguf") is None:
        raise ModelNotLoadedError(
            f"reading {gguf_file} needs the gguf package: pip install -e '.[gguf]'"
        )


def _dequantization() -> dict[str, Any]:
    """Tell libraries that could keep weights in blocks to dequantise them; older ones always do."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _forget_quantization(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the marks of quantisation, with which a model could be neither trained nor saved."""
    for owner in (model, model.config):
        for name in QUANTIZATION_MARKS:
            if name in vars(owner):
                delattr(owner, name)
    return model


def _explain(path: str, gguf_file: str, error: Exception) -> str:
    reason = first_line(error)
    if "architecture" in reason:
        return (
            f"{gguf_file} of {path!r} cannot be converted: {reason.rstrip('.')}; take weights of "
            "the model as safetensors, or another version of the transformers library"
        )
    if not Path(path).is_dir():
        return (
            f"{gguf_file} of {path!r} is neither in a local folder nor reachable on the hub: "
            f"{reason}"
        )
    return (
        f"{gguf_file} of {path!r} is damaged, or not what transformers can convert "
        f"({type(error).__name__}: {reason}); fetch it again"
    )
