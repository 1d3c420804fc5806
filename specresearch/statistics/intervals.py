"""Former name of `specresearch.statistics`, for modules that still import from here."""

from specresearch.statistics import *  # noqa: F403
