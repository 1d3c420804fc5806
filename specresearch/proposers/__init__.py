"""Ways of drafting. Each is one file here and one YAML file in conf/proposer/."""

from specresearch.proposers.autoregressive import Autoregressive
from specresearch.proposers.base import Proposer
from specresearch.proposers.draft_model import DraftModel
from specresearch.proposers.ngram import NGram

__all__ = ["Autoregressive", "DraftModel", "NGram", "Proposer"]
