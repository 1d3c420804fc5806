"""How many weights a model has, however they are stored."""

from copy import deepcopy

import torch
from transformers import PreTrainedModel


def count_parameters(model: PreTrainedModel) -> int:
    """Return the number of parameters; for a quantised model, of the one it was made from.

    Quantised layers pack several weights into one number (bitsandbytes, compressed-tensors) or
    keep them in buffers (GPTQ, AWQ). The same class built from the same config without memory has
    them all, whatever the format.
    """
    counted = model
    if getattr(model, "hf_quantizer", None) is not None:
        with torch.device("meta"):
            counted = type(model)(deepcopy(model.config))
        counted.tie_weights()
    return sum(parameter.numel() for parameter in counted.parameters())
