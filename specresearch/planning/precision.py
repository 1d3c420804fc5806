"""How many bytes weights take in the formats that they are stored in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GROUP_SIZE = 128  # weights that share a scale of 16 bits and a zero point of 4
DOUBLE_QUANTISED = 0.127  # bits a weight for bitsandbytes' scales, which are quantised themselves


@dataclass(frozen=True)
class Precision:
    """A format of weights.

    Attributes:
        bits: Of a quantised weight, its share of scales and zero points included.
        rest: Bytes of every other weight: embeddings, LM head and norms, which most recipes leave.
        only_experts: Linear layers outside of experts are left as well.
    """

    name: str
    bits: float
    rest: int = 2
    only_experts: bool = False

    @property
    def is_quantised(self) -> bool:
        return self.bits < 8 * self.rest

    @property
    def nominal_bits(self) -> int:
        """Bits of a weight without scales."""
        return int(self.bits)


def int4(group_size: int = GROUP_SIZE) -> Precision:
    """Return 4 bits a weight in groups with a scale of 16 bits and a zero point of 4."""
    return Precision("int4", 4 + 20 / group_size)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float64", 64.0, rest=8),
        Precision("float32", 32.0, rest=4),
        Precision("bfloat16", 16.0),
        Precision("float16", 16.0),
        Precision("fp8", 8.0),
        Precision("int8", 8.0),
        int4(),
    )
}


def stored_precision(quantization: Mapping[str, Any] | None) -> Precision | None:
    """Return the format that a `quantization_config` of a config.json declares.

    Raises:
        ValueError: If it is not one of those known here.
    """
    if not quantization:
        return None
    method = str(quantization.get("quant_method"))
    if method in ("fp8", "fbgemm_fp8"):
        return PRECISIONS["fp8"]
    if method == "mxfp4":
        return Precision("mxfp4", 4.25, only_experts=True)  # a scale of 8 bits for 32 weights
    if method == "bitsandbytes":
        if not quantization.get("load_in_4bit"):
            return PRECISIONS["int8"]
        scales = DOUBLE_QUANTISED if quantization.get("bnb_4bit_use_double_quant") else 0.5
        return Precision("bitsandbytes 4-bit", 4 + scales)
    if method in ("gptq", "awq"):
        bits, group_size = quantization.get("bits"), quantization.get("group_size")
    elif method == "compressed-tensors":
        groups = quantization.get("config_groups") or {}
        weights = next((group.get("weights") for group in groups.values()), None) or {}
        bits, group_size = weights.get("num_bits"), weights.get("group_size")
    else:
        bits = group_size = None
    if bits == 8:
        return PRECISIONS["int8"]
    if bits == 4:
        return int4(group_size if group_size and group_size > 0 else GROUP_SIZE)
    raise ValueError(
        f"its quantization_config (quant_method={method}) is not one whose size is known here; set "
        f"precision.target or precision.draft to one of {', '.join(PRECISIONS)}"
    )
