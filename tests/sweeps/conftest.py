"""Fixtures of this folder."""

from tests.small_runs import make_runner, prompt_file, target

__all__ = ["make_runner", "prompt_file", "target"]
