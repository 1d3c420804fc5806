"""Speculative decoding of language models, with every method on one verifier and every result beside its baseline."""

from specresearch.batch import Request
from specresearch.engine import Engine, RequestOutput
from specresearch.models import CausalLM
from specresearch.sampling import SamplingParams

__all__ = ["CausalLM", "Engine", "Request", "RequestOutput", "SamplingParams"]
