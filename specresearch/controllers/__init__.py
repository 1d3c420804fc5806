"""Rules that decide how much to speculate."""

from specresearch.controllers.base import Controller
from specresearch.controllers.fixed import Fixed

__all__ = ["Controller", "Fixed"]
