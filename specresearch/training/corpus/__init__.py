"""Training text: published replies, plain text and generated text, mixed in a seeded order."""

from specresearch.training.corpus.config import Corpus
from specresearch.training.corpus.mix import Mix
from specresearch.training.corpus.reply_generator import GenerationSettings

__all__ = ["Corpus", "GenerationSettings", "Mix"]
