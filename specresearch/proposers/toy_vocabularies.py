"""Two vocabularies of a few tokens, and a random draft, for certificates on toy targets."""

from itertools import count, islice, product
from typing import Any

import torch

from specresearch.models.causal_lm import CausalLM
from specresearch.models.vocabulary import Vocabulary

DRAFT = Vocabulary([b"b", b"a", b"a", b"bb", b"bab"])
"""Has two ids for one token, and two that small targets lack.

About half of a random draft's distribution is on common tokens.
"""


def toy_vocabularies(size: int) -> tuple[Vocabulary, Vocabulary]:
    """Return those of target and draft: the target has the shortest strings of two letters."""
    strings = (bytes(word) for length in count(1) for word in product(b"ab", repeat=length))
    return Vocabulary(list(islice(strings, size))), DRAFT


def toy_draft(target: CausalLM, seed: int) -> CausalLM:
    """Return a random model of the target's shape with the draft's vocabulary."""
    config: Any = target.model.config
    settings = config.to_dict() | {
        "vocab_size": len(DRAFT.pieces),
        "num_hidden_layers": 1,
        "initializer_range": config.hidden_size**-0.5,
    }
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = type(target.model)(type(config)(**settings))
    torch.nn.Module.to(model, target.dtype)
    return CausalLM(model, max_len=target.max_len, name="toy_draft")
