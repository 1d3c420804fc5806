"""EAGLE-3 (arXiv 2503.01840): reads hidden states of three target layers, has its own LM head."""

from specresearch.models.eagle_format import Eagle3Format
from specresearch.proposers.eagle import Eagle


class Eagle3(Eagle):
    """Drafts with an EAGLE-3 head, raw or in the speculators layout; settings as in `Eagle`."""

    format = Eagle3Format
