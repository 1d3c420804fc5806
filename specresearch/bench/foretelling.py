"""Lets the target write a little, and a proposer foretell from it how its drafts will fare."""

from collections.abc import Sequence
from dataclasses import replace

from specresearch.engine import Engine
from specresearch.proposers import Proposer
from specresearch.proposers.foretold import Foretold, Text
from specresearch.request import Request
from specresearch.sampling_params import SamplingParams

NUM_TEXTS = 4
NUM_TOKENS = 32  # of each


def foretell(
    plain: Engine,
    proposer: Proposer | None,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
) -> Foretold | None:
    """Return what the target's continuations of some prompts foretell; None if nothing.

    Penalties are left out, since they depend on what was drafted before.
    """
    if proposer is None or not proposer.foretells:
        return None
    num_tokens = min(NUM_TOKENS, sampling.max_new_tokens)
    sampling = replace(
        sampling,
        max_new_tokens=num_tokens,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
    )
    texts = []
    by_id = {str(number): prompt for number, prompt in enumerate(prompts[:NUM_TEXTS])}
    requests = [Request(prompt, sampling, id) for id, prompt in by_id.items()]
    for output in plain.generate(requests):
        texts.append(Text(by_id[output.id], output.checked().token_ids))
    return proposer.foretell(plain.target, texts, sampling)
