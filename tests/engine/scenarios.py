"""A target, ragged requests, and proposers whose state must survive chunks and preemption."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tiny_models import VOCAB, build, letters_tokenizer

from specresearch import CausalLM, Engine, Request, RequestOutput, SamplingParams
from specresearch.models.eagle_format import FORMATS
from specresearch.models.eagle_head import EagleHead
from specresearch.models.medusa import MedusaHeads
from specresearch.models.vocabulary import Vocabulary
from specresearch.proposers import (
    Cascade,
    DraftModel,
    DraftModelOtherTokenizer,
    Eagle,
    Eagle3,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)

MODEL = build("llama", seed=1)
MAX_LEN = 64


@cache
def shared_target() -> CausalLM:
    return CausalLM(copy.deepcopy(MODEL), letters_tokenizer(), max_len=MAX_LEN)


@cache
def shared_draft() -> CausalLM:
    """Return the target with a little noise: it often drafts the right token, not always."""
    model = copy.deepcopy(MODEL)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return CausalLM(model, max_len=MAX_LEN)


def other_tokenizer(**settings: Any) -> DraftModelOtherTokenizer:
    """Return a proposer whose draft lacks five of the target's tokens."""
    pieces: list[bytes | None] = [f"{id} ".encode() for id in range(VOCAB)]
    vocabularies = Vocabulary(pieces), Vocabulary([*pieces[:-5], *[None] * 5])
    return DraftModelOtherTokenizer(
        shared_draft(), **{"num_draft_tokens": 3, "vocabularies": vocabularies} | settings
    )


def _head(version: int, width: int) -> EagleHead:
    config: Any = MODEL.config
    torch.manual_seed(3)
    return EagleHead.of(
        FORMATS[version](config, width, draft_vocab_size=VOCAB if version == 3 else None)
    )


def _medusa_heads() -> MedusaHeads:
    torch.manual_seed(4)
    return MedusaHeads(16, VOCAB, 3)


PROPOSERS: dict[str, Callable[[], Proposer | None]] = {
    "plain": lambda: None,
    "ngram": lambda: NGram(3, n_max=2, n_min=1),
    "draft_model": lambda: DraftModel(shared_draft(), 3),
    "draft_model_other_tokenizer": lambda: other_tokenizer(),
    "eagle": lambda: Eagle(_head(1, 32), 3, tree="chain"),
    "eagle3": lambda: Eagle3(_head(3, 48), 3, tree="chain", layer_ids=[0, 1, 2]),
    "suffix": lambda: Suffix(4, offset=1.0),
    "medusa": lambda: Medusa(_medusa_heads(), 5),
    "cascade": lambda: Cascade([NGram(3, n_max=2), DraftModel(shared_draft(), 3)]),
}
# A preempted request loses what these learnt, so its sampled tokens keep only their distribution.
FORGETFUL: dict[str, Callable[[], Proposer | None]] = {
    "lookahead": lambda: Lookahead(window_size=3, ngram_size=3, num_ngrams=2),
    "token_recycling": lambda: TokenRecycling(6, top_k=3, depth=3),
}


ALL = PROPOSERS | FORGETFUL
SAMPLED: dict[str, float] = {"temperature": 1.0}
PENALIZED: dict[str, float] = {
    "temperature": 0.8,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.2,
}
SAMPLED_CASES = [
    *((name, SAMPLED) for name in PROPOSERS),
    ("plain", PENALIZED),
    ("draft_model", PENALIZED),
]


def prompts() -> list[tuple[int, ...]]:
    """Return prompts of 1 to 40 tokens; every other one repeats a pattern."""
    generator = torch.Generator().manual_seed(5)
    lengths = (1, 26, 3, 40, 9, 33)
    result = []
    for i, length in enumerate(lengths):
        period = length if i % 2 else 3
        pattern = torch.randint(0, VOCAB, (period,), generator=generator).tolist()
        result.append(tuple((pattern * length)[:length]))
    return result


def requests(**sampling: Any) -> list[Request]:
    settings: dict[str, Any] = {"max_new_tokens": 12} | sampling
    return [
        Request(prompt, SamplingParams(**settings), str(i)) for i, prompt in enumerate(prompts())
    ]


def decode(engine: Engine, **sampling: Any) -> dict[str, RequestOutput]:
    return {output.id: output for output in engine.generate(requests(**sampling))}


def tokens_of(outputs: dict[str, RequestOutput]) -> dict[str, tuple[int, ...]]:
    return {id: output.token_ids for id, output in outputs.items()}


@cache
def decoded_freely(name: str, **sampling: float) -> dict[str, RequestOutput]:
    """Return the outputs of a proposer's engine without limits on steps or cache."""
    return decode(Engine(shared_target(), PROPOSERS[name](), max_batch_size=4), **sampling)


@cache
def plain() -> dict[str, tuple[int, ...]]:
    """Return the tokens of plain greedy decoding."""
    return tokens_of(decode(Engine(shared_target(), max_batch_size=8)))
