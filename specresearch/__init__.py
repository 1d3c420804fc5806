"""Speculative decoding: every method on one verifier, every result beside its baseline."""

from specresearch.engine import Engine, RequestOutput
from specresearch.models import CausalLM
from specresearch.request import Request
from specresearch.sampling import SamplingParams

__all__ = ["CausalLM", "Engine", "Request", "RequestOutput", "SamplingParams"]
