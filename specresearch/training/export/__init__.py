"""Trained heads in the layouts that serving engines read."""

from specresearch.training.export.head import export_head

__all__ = ["export_head"]
