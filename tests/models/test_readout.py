"""Logits of some tokens are those of all tokens, at the same places."""

import pytest
import torch
from tiny_models import ARCHITECTURES, VOCAB, build

from specresearch import CausalLM
from specresearch.models.head_fit import lm_head_of

IDS = torch.tensor([7, 0, VOCAB - 1, 3])


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_some_logits_are_those_of_all_tokens(architecture: str) -> None:
    model = CausalLM(build(architecture), self_test=False)
    width = lm_head_of(model).in_features
    with torch.inference_mode():
        states = torch.randn(2, 5, width, dtype=model.dtype)
        torch.testing.assert_close(model.readout(states, IDS), model.readout(states)[..., IDS])


def test_a_quantized_lm_head_computes_all_logits() -> None:
    pytest.importorskip("torchao")
    model = CausalLM.from_pretrained("zoo:tiny", device="cpu", quantization="int8")
    with torch.inference_mode():
        states = torch.randn(3, model.model.config.hidden_size)
        assert torch.equal(model.readout(states, IDS), model.readout(states)[..., IDS])
