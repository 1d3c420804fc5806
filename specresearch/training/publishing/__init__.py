"""Trained drafters with a model card, and their upload to the hub."""

from specresearch.training.publishing.publication import Publication

__all__ = ["Publication"]
