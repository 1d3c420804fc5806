"""Tests that need a GPU; run them with `pytest -m gpu`."""

import importlib.util

import pytest
import torch
from transformers import PreTrainedModel

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.proposal import Proposal, Topology
from specresearch.proposers import DraftModel, NGram
from tests.tiny_models import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(model: PreTrainedModel) -> PreTrainedModel:
    torch.nn.Module.cuda(model)
    return model


PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5], [6, 7, 8, 9, 6, 7]]


def test_tree_equals_sequence_on_the_device() -> None:
    model = CausalLM(on_gpu(build("llama")))
    model.allocate(2, 4)
    tree = Topology.from_parents(torch.tensor([[-1, 0, 0, 1]], device="cuda"))
    tokens = torch.tensor([[3, 4, 5, 6]], device="cuda")
    slot, other = model.acquire(), model.acquire()
    assert slot is not None
    assert other is not None
    model.extend((slot,), [PROMPTS[0]], want_logits=False)
    logits = model.forward((slot,), Proposal(tokens, tree, torch.tensor([4], device="cuda"))).logits
    alone = model.extend((other,), [[*PROMPTS[0], 3, 4, 6]]).logits
    torch.testing.assert_close(logits[:, 3:], alone)


@pytest.mark.parametrize("attention", ["slot", "flash"])
def test_half_precision_chains_agree_with_float32(attention: str) -> None:
    if attention == "flash" and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    exact = CausalLM(on_gpu(build("llama", dtype=torch.float32, spread=0.5)))
    half = CausalLM(
        on_gpu(build("llama", dtype=torch.float32, spread=0.5)).bfloat16(), attention=attention
    )
    for model in (exact, half):
        model.allocate(3, 4)
    slots = (0, 1, 2)
    reference = exact.extend(slots, PROMPTS).logits
    torch.testing.assert_close(
        half.extend(slots, PROMPTS).logits.float(), reference, rtol=0.1, atol=0.1
    )
    chain = Proposal.chain(
        torch.tensor([[1, 2, 3, 4]] * 3, device="cuda"), torch.tensor([4, 4, 4], device="cuda")
    )
    verified = exact.forward(slots, chain).logits
    torch.testing.assert_close(
        half.forward(slots, chain).logits.float(), verified, rtol=0.1, atol=0.1
    )


def test_greedy_is_baseline_on_the_device() -> None:
    target = CausalLM(on_gpu(build("llama")))
    sampling = SamplingParams(max_new_tokens=20)
    plain = {
        o.id: o.token_ids for o in Engine(target, max_batch_size=2).generate(PROMPTS, sampling)
    }
    for proposer in (NGram(4, n_min=1), DraftModel(CausalLM(on_gpu(build("llama"))), 3)):
        engine = Engine(target, proposer, max_batch_size=2)
        assert {o.id: o.token_ids for o in engine.generate(PROMPTS, sampling)} == plain
