"""Rules that decide which drafts the target agrees to."""

from specresearch.acceptance.base import AcceptanceSampler
from specresearch.acceptance.greedy import Greedy
from specresearch.acceptance.rejection import Rejection

__all__ = ["AcceptanceSampler", "Greedy", "Rejection"]
