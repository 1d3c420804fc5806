from specresearch.data.datasets import Prompt, PromptDataset
from specresearch.data.formats import Row
from specresearch.data.sources import Source
from specresearch.data.templates import Template, render

__all__ = ["Prompt", "PromptDataset", "Row", "Source", "Template", "render"]
