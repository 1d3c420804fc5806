"""EAGLE-3 (arXiv 2503.01840): the module reads hidden states of three target layers and has an LM head of its own."""

from specresearch.models.eagle_format import Eagle3Format
from specresearch.proposers.eagle import Eagle


class Eagle3(Eagle):
    """Drafts with an EAGLE-3 head, raw or in the speculators layout; all settings are those of `Eagle`."""

    format = Eagle3Format
