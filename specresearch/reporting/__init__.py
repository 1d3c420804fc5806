"""From folders of runs to a page that says whether to turn speculative decoding on, and why."""

from specresearch.reporting.folders import gather
from specresearch.reporting.limits import Limits
from specresearch.reporting.page import compose, write

__all__ = ["Limits", "compose", "gather", "write"]
