"""Drafting methods. Each is one file here and one YAML file in conf/proposer/."""

from specresearch.proposers.autoregressive import Autoregressive
from specresearch.proposers.base import Proposer, is_own
from specresearch.proposers.cascade import Cascade
from specresearch.proposers.draft_model import DraftModel
from specresearch.proposers.draft_model_other_tokenizer import DraftModelOtherTokenizer
from specresearch.proposers.eagle import Eagle
from specresearch.proposers.eagle3 import Eagle3
from specresearch.proposers.layer_skip import LayerSkip
from specresearch.proposers.lookahead import Lookahead
from specresearch.proposers.medusa import Medusa
from specresearch.proposers.ngram import NGram
from specresearch.proposers.suffix import Suffix
from specresearch.proposers.synthetic import Synthetic
from specresearch.proposers.token_recycling import TokenRecycling

__all__ = [
    "Autoregressive",
    "Cascade",
    "DraftModel",
    "DraftModelOtherTokenizer",
    "Eagle",
    "Eagle3",
    "LayerSkip",
    "Lookahead",
    "Medusa",
    "NGram",
    "Proposer",
    "Suffix",
    "Synthetic",
    "TokenRecycling",
    "is_own",
]
