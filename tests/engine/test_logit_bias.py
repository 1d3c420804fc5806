"""A logit bias changes the target's distribution, and drafts change nothing about that."""

import pytest
import torch
from scenarios import MODEL, shared_draft, shared_target
from tiny_models import VOCAB

from specresearch import Engine, Request, SamplingParams
from specresearch.proposers import DraftModel, NGram, Proposer

pytestmark = pytest.mark.filterwarnings("ignore:the target is")  # as large as the draft
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5], [6, 6, 6]]
BIAS = {2: -4.0, 5: 3.0, 9: 1.5}


def outputs(proposer: Proposer | None, sampling: SamplingParams) -> list[tuple[int, ...]]:
    engine = Engine(shared_target(), proposer, max_batch_size=3)
    return [output.token_ids for output in engine.generate_all(PROMPTS, sampling)]


@pytest.mark.parametrize("proposer", [None, NGram(4), DraftModel(shared_draft(), 3)])
def test_greedy_tokens_are_those_of_biased_logits(proposer: Proposer | None) -> None:
    sampling = SamplingParams(max_new_tokens=12, ignore_eos=True, logit_bias=BIAS)
    bias = torch.zeros(VOCAB, dtype=torch.float64)
    for token, value in BIAS.items():
        bias[token] = value
    for prompt, output in zip(PROMPTS, outputs(proposer, sampling), strict=True):
        tokens = list(prompt)
        for token in output:
            with torch.inference_mode():
                logits = MODEL(torch.tensor([tokens])).logits[0, -1]
            assert token == int((logits + bias).argmax())
            tokens.append(token)
    plain = outputs(proposer, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert plain != outputs(proposer, sampling)


@pytest.mark.parametrize("proposer", [None, NGram(4), DraftModel(shared_draft(), 3)])
def test_a_token_can_be_banned_or_forced(proposer: Proposer | None) -> None:
    banned = dict.fromkeys(range(0, VOCAB, 2), -100.0)
    sampling = SamplingParams(1.0, max_new_tokens=16, ignore_eos=True, logit_bias=banned)
    assert all(token % 2 for output in outputs(proposer, sampling) for token in output)
    forced = SamplingParams(1.0, max_new_tokens=5, ignore_eos=True, logit_bias={7: 100.0})
    assert outputs(proposer, forced) == [(7,) * 5] * len(PROMPTS)


def test_requests_without_one_are_not_touched() -> None:
    engine = Engine(shared_target(), NGram(4), max_batch_size=2)
    plain = SamplingParams(max_new_tokens=8, ignore_eos=True)
    biased = SamplingParams(max_new_tokens=8, ignore_eos=True, logit_bias={7: 100.0})
    both = [Request(PROMPTS[0], biased, "biased"), Request(PROMPTS[0], plain, "plain")]
    found = {output.id: output.token_ids for output in engine.generate(both)}
    assert found["biased"] == (7,) * 8
    assert found["plain"] == outputs(None, plain)[0]


@pytest.mark.parametrize("bias", [{-1: 1.0}, {3: 101.0}, {3: float("nan")}, {True: 1.0}])
def test_a_wrong_bias_is_refused(bias: dict[int, float]) -> None:
    with pytest.raises(ValueError, match=r"sampling\.logit_bias"):
        SamplingParams(logit_bias=bias)


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    engine = Engine(shared_target())
    with pytest.raises(ValueError, match="holds token 100000, outside"):
        engine.submit(Request([1], SamplingParams(logit_bias={100_000: 1.0})))
