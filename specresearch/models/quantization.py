"""Quantised weights: what int8, int4 and float8 stand for on a device, and whether it works there.

Names and settings become a configuration of the transformers library, which quantises while it
loads. Each is first tried on a model of a few numbers, so that a missing package or kernel shows
before anything large is read.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.quantization_config import (
    BitsAndBytesConfig,
    QuantizationConfigMixin,
    TorchAoConfig,
)

from specresearch.models.load_errors import first_line
from specresearch.models.quantizer import Quantizer, quiet, short, try_out

Quantization: TypeAlias = str | Mapping[str, Any]
NAMES = ("int8", "int4", "float8")
WEIGHTS, LM_HEAD = "weights", "lm_head"  # keys of settings in names
INSTALL = "pip install -e '.[quantization]'"
FLOAT8_CAPABILITY = (8, 9)
INT4_GROUP = 32  # weights that share a scale
PACKAGES = {
    "gptq": "optimum gptqmodel",
    "awq": "gptqmodel",
    "compressed-tensors": "compressed-tensors",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
}  # packages that transformers asks for, by quant_method


@dataclass(frozen=True)
class Candidate:
    """One of the ways to get what a name stands for.

    Attributes:
        serves: Returns why a device cannot use it, or None.
        torchao: Returns a configuration of torchao; None for one of bitsandbytes.
        lm_head: The same for the LM head, whose errors reach the logits at once.
        settings: Of bitsandbytes, which leaves the LM head as it is.
    """

    name: str
    serves: Callable[[torch.device], str | None] = lambda _: None
    torchao: Callable[[], Any] | None = None
    lm_head: Callable[[], Any] | None = None
    settings: Mapping[str, Any] | None = None

    def quantizer(self) -> Quantizer:
        if self.torchao is None:
            return Quantizer(BitsAndBytesConfig(**(self.settings or {})))
        return Quantizer(TorchAoConfig(self.torchao()), (self.lm_head or self.torchao)())


def _int8() -> Any:
    return _torchao("quantization", "Int8WeightOnlyConfig")(set_inductor_config=False)


def _int4_on_cpu() -> Any:
    kind = _torchao("prototype.quantization.int4", "PrototypeInt4WeightOnlyConfig")
    return kind(group_size=INT4_GROUP, set_inductor_config=False)


def _int4_on_gpu() -> Any:
    return _torchao("quantization", "Int4WeightOnlyConfig")(
        group_size=INT4_GROUP,
        int4_packing_format="tile_packed_to_4d",
        set_inductor_config=False,
    )


def _float8() -> Any:
    return _torchao("quantization", "Float8WeightOnlyConfig")(set_inductor_config=False)


def _torchao(module: str, name: str) -> Any:
    """Return a class of torchao, without its warnings about kernels for other devices."""
    try:
        with quiet():
            return getattr(importlib.import_module(f"torchao.{module}"), name)
    except ModuleNotFoundError as error:
        raise ImportError("torchao is not installed") from error


def _on(kind: str) -> Callable[[torch.device], str | None]:
    return lambda device: None if device.type == kind else f"its kernel is for {kind}"


def _has_float8(device: torch.device) -> str | None:
    wanted = ".".join(map(str, FLOAT8_CAPABILITY))
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= FLOAT8_CAPABILITY:
        return None
    return f"only GPUs of compute capability {wanted} or more have its arithmetic"


CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "int8": (
        Candidate("torchao", torchao=_int8),
        Candidate("bitsandbytes", settings={"load_in_8bit": True}),
    ),
    "int4": (
        Candidate("torchao", _on("cpu"), torchao=_int4_on_cpu, lm_head=_int8),
        Candidate("torchao", _on("cuda"), torchao=_int4_on_gpu, lm_head=_int8),
        Candidate("bitsandbytes", settings={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    ),
    "float8": (Candidate("torchao", _has_float8, torchao=_float8),),
}


def choose_quantizer(
    quantization: Quantization, device: torch.device, dtype: torch.dtype
) -> Quantizer:
    """Return how to quantise on a device, after a trial of it.

    Args:
        quantization: A name, which stands for the first of its `CANDIDATES` that works: it covers
            all linear layers, with the LM head in int8 for int4; `{weights: name, lm_head: name
            or null}`, where null leaves the LM head as it is; or transformers' `quant_method`
            (default bitsandbytes) and its settings, those of torchao as `{quant_method: torchao,
            quant_type: Int8WeightOnlyConfig, ...}`.

    Raises:
        ValueError: If there is none: says why for each.
    """
    if isinstance(quantization, str):
        return _by_name(quantization, device, dtype)
    if WEIGHTS in quantization:
        body = _by_name(str(quantization[WEIGHTS]), device, dtype)
        name = quantization.get(LM_HEAD)
        if name is None:
            return Quantizer(body.config)
        head: Any = _by_name(str(name), device, dtype).config
        if not isinstance(head, TorchAoConfig):
            raise ValueError(
                f"quantization={dict(quantization)}: only torchao quantises an LM head, which does "
                f"not work here; leave out lm_head, or {INSTALL}"
            )
        return Quantizer(body.config, head.quant_type)
    quantizer = Quantizer(_own_config(quantization))
    reason = try_out(quantizer, device, dtype)
    if reason is not None:
        raise ValueError(
            f"quantization={dict(quantization)} does not work on {device.type} in "
            f"{short(dtype)}: {reason}; try quantization=int8, or {INSTALL}"
        )
    return quantizer


def label_of(quantization: Quantization | None, dtype: str) -> str:
    """Return what a table calls weights, such as "int4" or "bfloat16".

    Args:
        dtype: Of weights that are not quantised.
    """
    if quantization is None:
        return dtype
    if isinstance(quantization, str):
        return quantization
    if WEIGHTS in quantization:
        return f"{quantization[WEIGHTS]}, LM head {quantization.get(LM_HEAD) or dtype}"
    return ", ".join(f"{key}={value}" for key, value in quantization.items())


def explain_failure(model: str, config: Any, error: Exception) -> str:
    """Say what is missing to read a checkpoint that comes quantised.

    Args:
        config: The checkpoint's own.
    """
    settings = getattr(config, "quantization_config", None) or {}
    package = PACKAGES.get(str(settings.get("quant_method")))
    remedy = f"pip install {package}" if package else f"for int8 and int4: {INSTALL}"
    return f"{model!r} comes quantised and cannot be read: {first_line(error)}; {remedy}"


def _by_name(name: str, device: torch.device, dtype: torch.dtype) -> Quantizer:
    if name not in CANDIDATES:
        raise ValueError(f"quantization={name} is unknown; choose one of {', '.join(NAMES)}")
    reasons = []
    for candidate in CANDIDATES[name]:
        reason = candidate.serves(device)
        if reason is None:
            try:
                quantizer = candidate.quantizer()
            except (ImportError, ValueError) as error:
                reason = first_line(error)
            else:
                reason = try_out(quantizer, device, dtype)
                if reason is None:
                    return quantizer
        reasons.append(f"{candidate.name}: {reason}")
    others = " or ".join(other for other in NAMES[:2] if other != name)
    raise ValueError(
        f"quantization={name} does not work on {device.type} in {short(dtype)} "
        f"({'; '.join(reasons)}); use {others}, or {INSTALL}"
    )


def _own_config(settings: Mapping[str, Any]) -> QuantizationConfigMixin:
    try:
        if settings.get("quant_method") == "torchao":
            rest = {key: value for key, value in settings.items() if key != "quant_method"}
            kind = _torchao("quantization", str(rest.pop("quant_type")))
            return TorchAoConfig(kind(**rest))
        return AutoQuantizationConfig.from_dict({"quant_method": "bitsandbytes", **settings})
    except (ValueError, TypeError, AssertionError, KeyError, AttributeError, ImportError) as error:
        reason = str(error).partition(" - supported")[0]
        raise ValueError(
            f"target.quantization={dict(settings)} is not one that the transformers library knows "
            f"({reason}); for 4 bits use target.quantization=int4, or "
            "{load_in_4bit: true} for bitsandbytes"
        ) from error
