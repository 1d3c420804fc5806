"""Datasets of prompts: where rows come from, how they are parsed, and how they become prompts."""

from specresearch.data.datasets import Prompt, PromptDataset
from specresearch.data.formats import Row
from specresearch.data.sources import DatasetSource
from specresearch.data.templates import Template, render

__all__ = ["DatasetSource", "Prompt", "PromptDataset", "Row", "Template", "render"]
