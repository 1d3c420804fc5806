"""Rules that decide which drafts are accepted."""

from specresearch.acceptance.base import (
    AcceptanceSampler,
    LossySampler,
    SelectiveSampler,
    node_rows,
    own_probability,
)
from specresearch.acceptance.block import Block
from specresearch.acceptance.greedy import Greedy
from specresearch.acceptance.rejection import Rejection
from specresearch.acceptance.shift import OutputShift, output_shift, read_shift
from specresearch.acceptance.threshold import Threshold
from specresearch.acceptance.typical import Typical

RULES: dict[str, type[AcceptanceSampler]] = {
    "greedy": Greedy,
    "rejection": Rejection,
    "block": Block,
    "typical": Typical,
    "threshold": Threshold,
}

__all__ = [
    "RULES",
    "AcceptanceSampler",
    "Block",
    "Greedy",
    "LossySampler",
    "OutputShift",
    "Rejection",
    "SelectiveSampler",
    "Threshold",
    "Typical",
    "node_rows",
    "output_shift",
    "own_probability",
    "read_shift",
]
