"""Rules that decide which drafts the target agrees to."""

from specresearch.acceptance.base import AcceptanceSampler
from specresearch.acceptance.greedy import Greedy
from specresearch.acceptance.rejection import Rejection

RULES: dict[str, type[AcceptanceSampler]] = {"greedy": Greedy, "rejection": Rejection}

__all__ = ["RULES", "AcceptanceSampler", "Greedy", "Rejection"]
