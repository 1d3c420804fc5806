"""The loop that drafts, verifies and accepts."""

from specresearch.engine.engine import Engine, RequestOutput

__all__ = ["Engine", "RequestOutput"]
