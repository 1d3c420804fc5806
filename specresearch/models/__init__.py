"""Any Hugging Face causal LM as a target or as a draft."""

from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.models.target_copy import TargetCopy, load_draft

__all__ = ["CausalLM", "ModelOutput", "TargetCopy", "load_draft"]
