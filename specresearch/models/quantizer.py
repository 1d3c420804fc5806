"""Quantise a model that is loaded, or while it loads, and try whether that works on a device."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from specresearch.models.int8_linear import use_int8_kernel
from specresearch.models.load_errors import first_line

TRIAL_WIDTH = 256  # a multiple of the groups of weights that share a scale
WORST_TRIAL = 0.5  # error of logits over their norm; 4 bits of random weights reach 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quantizer:
    """How to quantise a model on loading.

    Attributes:
        config: What the transformers library does while it loads. It leaves the LM head as it is.
        lm_head: A configuration of torchao for the LM head; None leaves it.
    """

    config: QuantizationConfigMixin
    lm_head: Any = None

    def finish(self, model: PreTrainedModel) -> None:
        """Quantise the LM head of a loaded model, which unties it from the embeddings."""
        if self.lm_head is None:
            return
        from torchao.quantization import quantize_

        head = model.get_output_embeddings()
        quantize_(model, self.lm_head, filter_fn=lambda module, _: module is head)


def try_out(quantizer: Quantizer, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a tiny model cannot be quantised and run here, or None."""
    config = LlamaConfig(
        vocab_size=TRIAL_WIDTH,
        hidden_size=TRIAL_WIDTH,
        intermediate_size=TRIAL_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    token_ids = torch.arange(8, device=device)[None]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        plain: Any = LlamaForCausalLM(config)
        plain = plain.to(device=device, dtype=dtype)
        try:
            tried = quantized_copy(plain, quantizer, dtype, device)
            use_int8_kernel(tried)
            with quiet():
                logits, exact = (model(token_ids).logits.float() for model in (tried, plain))
        except Exception as error:
            logger.debug("a quantiser does not work here", exc_info=error)
            return first_line(error)
    if not any(is_quantized(layer) for layer in tried.modules() if hasattr(layer, "in_features")):
        return "it leaves all linear layers as they are"
    error = float((logits - exact).norm() / exact.norm())
    return None if error < WORST_TRIAL else f"logits are off by {error:.2g} of their norm"


def quantized_copy(
    model: PreTrainedModel, quantizer: Quantizer | None, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Return a copy of a loaded model, which shares what is not quantised."""
    config = deepcopy(model.config)
    load: Any = type(model).from_pretrained
    with quiet():
        copy = load(
            None,
            config=config,
            state_dict=model.state_dict(),
            dtype=dtype,
            attn_implementation="eager",
            device_map={"": device},
            quantization_config=None if quantizer is None else quantizer.config,
        )
        if quantizer is not None:
            quantizer.finish(copy)
    return copy.eval()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence libraries that announce kernels of other devices and versions to come."""
    shown, level = is_progress_bar_enabled(), logging.root.manager.disable
    disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if shown:
            enable_progress_bar()


def describe_weights(model: PreTrainedModel) -> str | None:
    """Say how a model is quantised, such as "torchao Int8WeightOnlyConfig"; None if it is not."""
    config: Any = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if config is None:
        return None
    method = getattr(config.quant_method, "value", config.quant_method)
    kind = f"{method}"
    if method == "bitsandbytes":
        kind += f" {config.bnb_4bit_quant_type}" if config.load_in_4bit else " int8"
    elif method == "torchao":
        kind += f" {type(config.quant_type).__name__}"
    elif getattr(config, "bits", None):
        kind += f" {config.bits} bits"
    head = model.get_output_embeddings()
    weight: Any = getattr(head, "weight", None)
    if head is None or is_quantized(head):
        stored = "" if weight is None else type(weight.data).__name__
        return f"{kind}, LM head {stored}" if is_traceable_wrapper_subclass(weight) else kind
    return f"{kind}, LM head {short(weight.dtype)}"


def is_quantized(layer: nn.Module) -> bool:
    """Return whether a linear layer's weights are stored in another form than their numbers."""
    weight: Any = getattr(layer, "weight", None)
    if weight is None:
        return True  # GPTQ and AWQ keep theirs in buffers
    return is_traceable_wrapper_subclass(weight) or not weight.dtype.is_floating_point


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
