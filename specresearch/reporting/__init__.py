"""From folders of runs to a page that says whether to turn speculative decoding on, and why."""

from specresearch.reporting.material import gather
from specresearch.reporting.page import compose, write
from specresearch.reporting.requirements import Requirements

__all__ = ["Requirements", "compose", "gather", "write"]
