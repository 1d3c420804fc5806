"""Any Hugging Face causal LM as a target or as a draft."""

from specresearch.models.causal_lm import CausalLM, ModelOutput

__all__ = ["CausalLM", "ModelOutput"]
