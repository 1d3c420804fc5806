"""Shapes of drafts that were chosen on this machine, by what they were measured with."""

from specresearch.shape_store.choice import ShapeChoice
from specresearch.shape_store.identity import Identity
from specresearch.shape_store.store import ShapeStore, cache_folder

__all__ = ["Identity", "ShapeChoice", "ShapeStore", "cache_folder"]
