"""Enumerated distributions agree with the engine's sampling."""

import numpy as np
import pytest
import torch
from toy_methods import SETTINGS, toy

from specresearch import SamplingParams
from specresearch.certification.enumeration import enumerate_outputs
from specresearch.certification.reference_sampling import next_token_probs
from specresearch.certification.targets import Toy
from specresearch.sampling import SamplingBatch, logits_to_probs


class TestEnumeration:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_probabilities_sum_to_one_and_agree_with_the_engines_sampling(self, name: str) -> None:
        prompt, sampling = (0, 3, 2, 0, 3), SETTINGS[name]
        distribution = enumerate_outputs(toy(), prompt, sampling)
        assert distribution.probs.sum() == pytest.approx(1)
        assert len(set(distribution.outputs)) == len(distribution.outputs)
        for output in distribution.outputs[:5]:
            logits = toy().logits([(*prompt, *output)])
            batch = SamplingBatch(
                [sampling],
                seeds=[0],
                positions=[0],
                device=torch.device("cpu"),
                prompt_counts=torch.bincount(torch.tensor(prompt), minlength=4)[None],
                output_counts=torch.bincount(torch.tensor(output), minlength=4)[None],
            )
            expected = next_token_probs(logits[0].numpy(), prompt, output, sampling)
            assert np.allclose(logits_to_probs(logits[None], batch)[0, 0].numpy(), expected)

    def test_logits_equal_those_of_each_context_alone(self) -> None:
        contexts = [(0,), (1, 2, 3), (2, 2), (1, 2, 3)]
        together = toy().logits(contexts)
        alone = torch.cat([Toy(vocab_size=4, seed=2).logits([context]) for context in contexts])
        assert torch.allclose(together, alone, rtol=0, atol=1e-12)

    def test_stop_tokens_end_an_output(self) -> None:
        distribution = enumerate_outputs(
            toy(), (0,), SamplingParams(temperature=1.0, max_new_tokens=2, stop_token_ids=(1,))
        )
        assert sorted(map(len, distribution.outputs)) == [1] + [2] * 12
